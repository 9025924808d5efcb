"""A gateway process that is killed under load: what ends with it, what does not, and what the totals say."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.metrics.layout import SeriesKey
from tests.processes.clients import Asked, Load, long_stream
from tests.processes.fleet import Fleet, configured, fleet, until

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(120)]

STREAMS = 32
TOKENS = 500
"""At 5 ms each the streams last while the process is killed, and the next one starts in its place."""


async def test_a_killed_process_takes_its_own_streams_with_it_and_nothing_else(tmp_path: Path) -> None:
    """
    Of 32 streams over four processes those of the killed one break off and no other. Whoever comes meanwhile is served.
    Totals count exactly the requests that ended; what the dead process had in its hands has no outcome, counts as lost,
    and is in flight nowhere.
    """
    async with asyncio.timeout(90), fleet(tmp_path, configured(4)) as gateway:
        streams = [Asked() for _ in range(STREAMS)]
        later = Load(gateway.port, pause_s=0)
        async with asyncio.TaskGroup() as group:
            for one in streams:
                group.create_task(long_stream(gateway.port, one, TOKENS))
            await until(lambda: all(one.tokens for one in streams))
            owners = gateway.owners()
            (killed, lost), *_ = Counter(owners[one.port] for one in streams).most_common()
            os.kill(killed, signal.SIGKILL)
            await until(lambda: gateway.total("gateway_worker_in_flight") == STREAMS - lost)
            group.create_task(later.run(STREAMS))
            await until(lambda: len(later.succeeded) > 2 * STREAMS)
            later.over.set()
        await gateway.all_serve(4)
        (restarted,) = [line for line in gateway.lines if line.restarts]
        mine = [one for one in streams if owners[one.port] == killed]
        others = [one for one in streams if owners[one.port] != killed]
        await until(lambda: gateway.total("gateway_requests_in_flight") == 0)

        assert lost == len(mine) > 0
        assert [] == [one for one in mine if one.whole]
        assert [] == [one for one in others if not one.whole or one.tokens != TOKENS]
        assert [] == later.refused
        assert [] == later.failed
        assert (1, True) == (restarted.restarts, restarted.pid != killed)
        ended = len(others) + len(later.asked)
        assert (ended, ended) == (
            gateway.total("gateway_requests_total"),
            gateway.total("gateway_requests_total", "ok"),
        )
        assert len(mine) == gateway.total("gateway_lost_requests_total")
        tokens = sum(one.tokens for one in (*others, *later.asked))
        assert tokens == gateway.total("gateway_output_tokens_total")
        assert 0 == gateway.total("gateway_worker_in_flight")


async def test_the_permits_of_a_killed_process_are_back(tmp_path: Path) -> None:
    """
    A worker's eight permits are in use and eight streams wait, all over four processes. One process is killed: as many
    of the others' waiting streams begin as it had running, while all that ran elsewhere still run.
    """
    async with (
        asyncio.timeout(90),
        fleet(tmp_path, configured(4, model={"max_in_flight": 8}), workers=1) as gateway,
    ):
        running, waiting = [Asked() for _ in range(8)], [Asked() for _ in range(8)]
        async with asyncio.TaskGroup() as group:
            streams = [group.create_task(long_stream(gateway.port, one, 10 * TOKENS)) for one in running]
            await until(lambda: all(one.tokens for one in running))
            for one in waiting:
                group.create_task(long_stream(gateway.port, one, 1))
            await until(lambda: gateway.total("gateway_requests_in_flight") == 16)
            begun = [one for one in waiting if one.status]
            (held,) = [worker.in_flight for worker in gateway.supervisor.report().workers]
            owners = gateway.owners()
            (killed, lost), *_ = Counter(owners[one.port] for one in running).most_common()
            left = [one for one in waiting if owners[one.port] != killed]
            os.kill(killed, signal.SIGKILL)
            await until(lambda: all(one.whole for one in left))
            still = [one for one in running if owners[one.port] != killed and not (one.whole or one.failure)]
            for stream in streams:
                stream.cancel()

        assert [] == begun
        assert (8, 8 - lost) == (held, len(still))
        assert lost > 0


def fallen(before: Mapping[SeriesKey, list[float]], after: Mapping[SeriesKey, list[float]]) -> list[SeriesKey]:
    """Counters and histograms that are lower than they were, or gone."""
    return [
        key
        for key, cells in before.items()
        if key[0].kind != "gauge" and (key not in after or any(a < b for a, b in zip(after[key], cells, strict=True)))
    ]


async def test_totals_never_fall(tmp_path: Path) -> None:
    """Scraped throughout a crash, a replacement, and more and fewer processes, under load: every counter only grows."""
    async with asyncio.timeout(90), fleet(tmp_path, configured(2)) as gateway:
        load = Load(gateway.port)
        wrong: list[SeriesKey] = []
        scrapes = 0

        async def scrape() -> None:
            nonlocal scrapes
            seen: Mapping[SeriesKey, list[float]] = {}
            while not load.over.is_set():
                now = gateway.supervisor.totals.merged()
                wrong.extend(fallen(seen, now))
                seen = now
                scrapes += 1
                await asyncio.sleep(0.005)

        async with asyncio.TaskGroup() as group:
            group.create_task(load.run(8))
            group.create_task(scrape())
            await until(lambda: len(load.succeeded) > 20)
            await crash(gateway)
            broken = [one for one in load.asked if one.failure]
            await gateway.replaced()
            await gateway.resized(3)
            await gateway.resized(1)
            load.over.set()
        # The last client may have its whole answer a moment before it is counted.
        await until(lambda: gateway.total("gateway_requests_in_flight") == 0)
        ok, lost = gateway.total("gateway_requests_total", "ok"), gateway.total("gateway_lost_requests_total")

    assert [] == wrong
    assert scrapes > 100
    assert [] == load.refused
    assert broken == load.failed
    # Who is killed between an answer's last byte and its counting had it in flight: then it is one of the lost.
    assert ok <= len(load.succeeded) <= ok + lost
    assert ok + lost <= len(load.succeeded) + len(broken)


async def crash(gateway: Fleet) -> None:
    """Kill one process and wait for the next one in its slot, and for the clients to have noticed."""
    count = len(gateway.pids)
    killed = gateway.pids[0]
    os.kill(killed, signal.SIGKILL)
    await until(lambda: killed not in gateway.pids)
    await gateway.all_serve(count)
