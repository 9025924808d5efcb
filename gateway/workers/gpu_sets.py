"""Which GPUs make the best set for a tensor-parallel worker: a pure choice by the links between them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from itertools import combinations

MOST_SETS = 20_000
"""Beyond so many possible sets (more than sixteen GPUs) sets of neighbours in bus order are compared only."""


class Link(IntEnum):
    """How two GPUs reach each other, the fastest first."""

    NVLINK = 0
    SAME_BOARD = 1
    ONE_SWITCH = 2
    SEVERAL_SWITCHES = 3
    HOST_BRIDGE = 4
    SAME_NODE = 5
    ACROSS_NODES = 6


Links = Mapping[frozenset[int], Link]
"""By pair of GPU indices; a pair that is missing counts as ACROSS_NODES."""


def best_set(
    candidates: Sequence[int],
    size: int,
    links: Links,
    *,
    load: Callable[[int], float] = lambda index: 0.0,
    preferred: Sequence[int] = (),
) -> tuple[int, ...] | None:
    """
    `size` of the candidates, in ascending order; None when there are too few.

    The slowest link of a set decides, because every step waits for it; then the sum of its links; then the least load;
    then the `preferred`; then the set that breaks up the fewest fast pairs for workers to come.

    Args:
        load: Of a GPU by index: how much of it is taken already.
    """
    free = sorted(set(candidates))
    if len(free) < size:
        return None
    wanted = set(preferred)

    def link(one: int, other: int) -> Link:
        return links.get(frozenset((one, other)), Link.ACROSS_NODES)

    def cost(chosen: tuple[int, ...]) -> tuple[float, ...]:
        inside = [link(one, other) for one, other in combinations(chosen, 2)]
        left = [index for index in free if index not in chosen]
        broken = sum(link(one, other) is Link.NVLINK for one in chosen for other in left)
        return (
            max(inside, default=0),
            sum(inside),
            sum(map(load, chosen)),
            -len(wanted.intersection(chosen)),
            broken,
        )

    return min(_sets(free, size), key=lambda chosen: (cost(chosen), chosen))


def _sets(free: Sequence[int], size: int) -> list[tuple[int, ...]]:
    count = 1
    for taken in range(size):
        count = count * (len(free) - taken) // (taken + 1)
    if count <= MOST_SETS:
        return list(combinations(free, size))
    return [tuple(free[start : start + size]) for start in range(len(free) - size + 1)]
