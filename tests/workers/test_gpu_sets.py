"""The best set of GPUs by the links between them."""

from __future__ import annotations

from itertools import combinations

from gateway.workers.gpu_sets import Link, Links, best_set


def linked(*pairs: tuple[int, int], of: int = 4) -> Links:
    """NVLink between `pairs`, host bridges elsewhere."""
    links = {frozenset(pair): Link.HOST_BRIDGE for pair in combinations(range(of), 2)}
    return links | {frozenset(pair): Link.NVLINK for pair in pairs}


def test_pairs_on_nvlink_come_first() -> None:
    """0-2 and 1-3 are wired; 0-1 is next to each other only by number."""
    links = linked((0, 2), (1, 3))
    assert (0, 2) == best_set(range(4), 2, links)
    assert (1, 3) == best_set([1, 2, 3], 2, links)


def test_the_slowest_link_decides() -> None:
    """Three of which two are wired are as slow as the third."""
    links = linked((0, 1), (1, 2), (0, 2), (2, 3))
    assert (0, 1, 2) == best_set(range(4), 3, links)


def test_a_single_worker_leaves_pairs_whole() -> None:
    """GPU 4 has no partner: whoever needs one alone takes that."""
    links = linked((0, 1), (2, 3), of=5)
    assert (4,) == best_set(range(5), 1, links)
    assert (2,) == best_set([0, 1, 2], 1, links)


def test_less_load_wins_among_equal_links() -> None:
    """Sharing comes last."""
    assert (1,) == best_set([0, 1], 1, {}, load=lambda index: 0.4 if index == 0 else 0.0)


def test_preferred_gpus_win_among_equals_only() -> None:
    """Links and load matter more than what was planned before the machine was looked at."""
    assert (2,) == best_set([0, 1, 2], 1, {}, preferred=(2,))
    assert (0, 1) == best_set(range(4), 2, linked((0, 1)), preferred=(2, 3))
    assert (0,) == best_set([0, 1], 1, {}, preferred=(1,), load=lambda index: float(index))


def test_too_few_are_no_set() -> None:
    """Nothing is made up."""
    assert None is best_set([3], 2, {})
    assert None is best_set([3, 3], 2, {})


def test_a_huge_machine_is_decided_at_once() -> None:
    """Among 64 GPUs there are more sets of eight than can be compared: neighbours are."""
    switches = {
        frozenset(pair): Link.NVLINK if pair[0] // 8 == pair[1] // 8 else Link.SAME_NODE
        for pair in combinations(range(64), 2)
    }
    assert tuple(range(8, 16)) == best_set(range(3, 64), 8, switches)
