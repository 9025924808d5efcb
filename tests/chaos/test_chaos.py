"""Chaos: after any storm of bad clients and bad workers nothing is left of it, and the books agree."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import pytest

from gateway.types import Outcome
from tests.chaos.storm import Storm, open_files, storm, survivors, tasks

pytestmark = pytest.mark.anyio

KIB = 1024
LEFT_BYTES = 64 * KIB
"""What the gateway's code and its server may hold more at idle after a storm than before it."""
RSS_GROWTH_BYTES = 16 * KIB * KIB
"""What the whole process, clients and workers included, may grow by over a soak after its first rounds."""


@contextmanager
def reproducible(seed: int, path: str, which: str) -> Iterator[None]:
    """A failure says how to see it again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"seed {seed}; again: pytest tests/chaos -k '{which} and {path}' --chaos-seed {seed}")
        raise


def path_name(direct: bool) -> str:
    """The test id of a relay path."""
    return "direct" if direct else "portable"


async def rage_and_leave_nothing(weather: Storm, requests: int, *, rounds: int) -> None:
    """`requests` in so many rounds; after each the same tasks, descriptors and objects as before the first."""
    before, files = tasks(), open_files()
    for _ in range(rounds):
        await weather.rage(requests // rounds)
        weather.forget()

        assert {} == weather.running.busy()
        assert set() == tasks(before)
        assert {} == survivors()
        assert files == open_files()


@pytest.mark.integration
@pytest.mark.timeout(120)
async def test_a_storm_passes_without_a_trace(seed: int, direct: bool) -> None:
    """
    2,000 requests: every count, lease, connection, task and descriptor is back to zero, every request is counted once
    and as what its client saw.
    """
    with reproducible(seed, path_name(direct), "storm"):
        async with storm(seed, direct=direct) as weather:
            await rage_and_leave_nothing(weather, 2_000, rounds=2)

            wanted = {Outcome.OK, Outcome.CLIENT_ERROR, Outcome.CLIENT_CLOSED, Outcome.UPSTREAM_ERROR}
            wanted |= {Outcome.UPSTREAM_TIMEOUT, Outcome.UPSTREAM_INCOMPLETE}
            assert wanted <= set(weather.outcomes), "the storm was too mild to prove anything"


@pytest.mark.integration
@pytest.mark.timeout(120)
async def test_a_storm_in_which_all_wait_passes_without_a_trace(seed: int, direct: bool) -> None:
    """The same for 160 requests at twelve permits: most wait for one, and some of them leave in line or are retries."""
    with reproducible(seed, path_name(direct), "all_wait"):
        async with storm(seed, direct=direct, permits=3) as weather:
            await rage_and_leave_nothing(weather, 160, rounds=2)

            assert weather.waits["all"] > 30
            assert weather.waits["left"]
            assert weather.waits["again"]


@pytest.mark.integration
@pytest.mark.timeout(120)
async def test_memory_comes_back(seed: int, direct: bool) -> None:
    """What the gateway allocated in a storm it has given back at idle, to within a few buffers."""
    with reproducible(seed, path_name(direct), "memory"):
        async with storm(seed, direct=direct) as weather:
            await weather.rage(300)
            weather.forget()
            tracemalloc.start()
            try:
                await weather.rage(300)
                weather.forget()
                snapshot = tracemalloc.take_snapshot()
            finally:
                tracemalloc.stop()
            product = [tracemalloc.Filter(True, f"*/{name}/*") for name in ("gateway", "uvicorn", "starlette")]
            left = snapshot.filter_traces(product).statistics("lineno")

            assert sum(one.size for one in left) <= LEFT_BYTES, "\n".join(map(str, left[:20]))


@pytest.mark.soak
@pytest.mark.timeout(1800)
async def test_a_long_storm_leaves_no_more_than_a_short_one(seed: int, direct: bool) -> None:
    """20,000 requests from a new seed: the same as above, and the process stops growing."""
    process = psutil.Process()
    with reproducible(seed, path_name(direct), "long"):
        async with storm(seed, direct=direct) as weather:
            await rage_and_leave_nothing(weather, 6_000, rounds=3)
            settled = process.memory_info().rss
            await rage_and_leave_nothing(weather, 14_000, rounds=7)

            assert process.memory_info().rss - settled <= RSS_GROWTH_BYTES
