"""A worker that serves: watched, tested when it is silent, and let go when it is told to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from gateway.types import WorkerState
from gateway.workers.failures import StartFailure
from gateway.workers.inbox import Order, WorkerCommand, finished_within
from gateway.workers.lifecycle import LifeEvent
from gateway.workers.running import Running
from gateway.workers.services import ProbeFailure
from gateway.workers.watch import LOAD_STALE_S, HangWatch, Health, HealthPatience, Progress

TICK_S = 1.0
LOOK_GAP_S = 1.0
"""Between two looks that gateway processes asked for."""
CANARY_TIMEOUT_S = 4.0
CANARY_TRIES = 2
COUNT_TIMEOUT_S = 2.0
"""
For reading the step counter. With the canaries, the last load report and a tick (a second each) a hang is found at most
12 s after the idle limit, and its tree is dead well within 15.
"""
DRAIN_SETTLE_S = 1.5
"""
A load report counts for a drain only if it is so much younger: snapshots take 0.1 s to spread, reports come every
second, and a gateway process may still have dispatched on the snapshot before.
"""

_LATE = ProbeFailure("no answer in time")

EXITED = "exited"
HUNG = "hung"
UNHEALTHY = "unhealthy"


@dataclass(frozen=True, slots=True)
class Served:
    """Why a worker serves no more: an order, a failure of its own, or both (it fell while draining)."""

    order: Order | None = None
    failure: StartFailure | None = None


@dataclass(frozen=True, slots=True)
class _Drain:
    order: Order
    since_s: float
    until_s: float


class Serving:
    """Watches one launch from READY on. Used once."""

    def __init__(self, running: Running) -> None:
        self._spec = spec = running.spec
        self._clock = running.services.clock
        self._sleep = running.services.sleep
        self._board = running.board
        self._inbox = running.inbox
        self._process = running.process
        self._prober = running.prober
        self._log = running.log
        self._tail = running.tail
        self._hang = HangWatch(spec.watch)
        self._patience = HealthPatience(spec.watch)
        self._drain: _Drain | None = None
        self._next_probe_s = self._clock.monotonic() + spec.watch.probe_interval_s
        self._looked_at_s = float("-inf")
        self._look_now = False

    def report_load(self, in_flight: int, silent_s: float | None) -> None:
        """What the gateway processes have in flight here."""
        self._hang.load(self._clock.monotonic(), in_flight, silent_s)
        if in_flight == 0 and self._drain is not None:
            self._inbox.nudge()

    def report_failure(self) -> None:
        """A gateway process saw a failure: look at once, but not once for each of a thousand failures."""
        if not self._look_now:
            self._look_now = True
            self._inbox.nudge()

    async def run(self) -> Served:
        """Until the worker shall go or is lost."""
        while True:
            order = self._inbox.take()
            if order is not None:
                self._obey(order)
            self._tail.read()
            if self._log.is_full():
                await self._cut_log()
            if self._process.returncode is not None:
                return Served(self._drain.order if self._drain else None, _failure(EXITED, "The worker exited."))
            if self._drain is not None:
                if self._drained(self._drain):
                    return Served(self._drain.order)
            elif failure := await self._watch():
                return Served(failure=failure)
            await self._inbox.pause(self._until_next_look())

    async def _cut_log(self) -> None:
        self._tail.catch_up()
        try:
            await anyio.to_thread.run_sync(self._log.cut)
        except OSError as exc:
            # The file goes on growing, and the next tick tries again.
            self._board.set(last_failure=f"The worker's log {self._log.path} cannot be cut: {exc.strerror}; see `df`.")

    def _until_next_look(self) -> float:
        """Seconds: a tick, or less when a probe is due before."""
        if self._drain is not None:
            return TICK_S
        return min(TICK_S, max(0.0, self._next_probe_s - self._clock.monotonic()))

    def _obey(self, order: Order) -> None:
        now_s = self._clock.monotonic()
        if order.command is WorkerCommand.START:
            if self._drain is not None:
                self._drain = None
                self._board.follow(LifeEvent.START)
            return
        wait_s = self._spec.drain_timeout_s if order.drain_s is None else order.drain_s
        if self._drain is None:
            self._board.follow(LifeEvent.DRAIN)
            self._drain = _Drain(order, now_s, now_s + wait_s)
        elif order.ends and self._drain.order.ends:
            # Asked twice: whoever asks again does not want to wait.
            self._drain = _Drain(order, self._drain.since_s, now_s)
        else:
            self._drain = _Drain(order, self._drain.since_s, now_s + wait_s)

    def _drained(self, drain: _Drain) -> bool:
        """May the worker go now? Never for a mere DRAIN, which keeps the process."""
        if not drain.order.ends:
            return False
        now_s = self._clock.monotonic()
        if now_s >= drain.until_s:
            return True
        reported_s = self._hang.reported_at_s()
        if reported_s is None or now_s - reported_s > LOAD_STALE_S:
            return now_s - drain.since_s >= DRAIN_SETTLE_S
        return reported_s - drain.since_s >= DRAIN_SETTLE_S and self._hang.in_flight(now_s) == 0

    async def _watch(self) -> StartFailure | None:
        """One look at health and progress; the failure that condemns the worker."""
        now_s = self._clock.monotonic()
        scheduled = now_s >= self._next_probe_s
        if self._hang.judge(now_s) is Progress.TEST:
            pass  # what matters now is whether it answers a request; a health probe would take its time
        elif scheduled or (self._look_now and now_s - self._looked_at_s >= LOOK_GAP_S):
            self._look_now = False
            self._looked_at_s = now_s
            if failure := await self._look(scheduled=scheduled):
                return failure
        verdict = self._hang.judge(self._clock.monotonic())
        if verdict is Progress.FINE:
            return None
        await self._count_steps()
        if verdict is Progress.TEST and self._hang.judge(self._clock.monotonic()) is Progress.TEST:
            return await self._test()
        return None

    async def _look(self, *, scheduled: bool) -> StartFailure | None:
        """One health probe. A look out of turn is no verdict: only a scheduled miss wears the patience."""
        # Cut when a hang is due to be judged: a stopped API server lets probes wait as long as they will.
        asked = await self._ask(self._prober.health, self._hang.patience_s(self._clock.monotonic()))
        now_s = self._clock.monotonic()
        if scheduled:
            self._next_probe_s = now_s + self._spec.watch.probe_interval_s
        if asked is None:
            return None
        if asked.failed is None:
            self._patience.answered()
            self._recover()
            return None
        if not scheduled and not asked.failed.dead:
            return None
        health = self._patience.missed(dead=asked.failed.dead, progressing=self._hang.progressing(now_s))
        failure = _failure(UNHEALTHY, f"The worker does not answer its health probes: {asked.failed.detail}.")
        if health is Health.LOST:
            return failure
        if health is Health.SICK:
            self._suspect(failure)
        return None

    async def _count_steps(self) -> None:
        asked = await self._ask(self._prober.iterations, COUNT_TIMEOUT_S)
        if asked is not None and asked.failed is None:
            self._hang.counted(self._clock.monotonic(), asked.value)

    async def _test(self) -> StartFailure | None:
        """Route away, and ask for one token; the worker is lost when it stays silent."""
        failure = _failure(
            HUNG,
            f"The worker hung: requests in flight, but no byte and no engine step for "
            f"{self._spec.watch.hang_idle_s:g} s, and no answer to a test request.",
        )
        self._suspect(failure)
        for _ in range(CANARY_TRIES):
            asked = await self._ask(lambda: self._prober.generate(CANARY_TIMEOUT_S), CANARY_TIMEOUT_S, late=_LATE)
            if asked is None:
                return None  # an order, or its exit
            if asked.failed is None:
                self._hang.proved(self._clock.monotonic())
                self._recover()
                return None
        return failure

    def _suspect(self, failure: StartFailure) -> None:
        if self._board.state is WorkerState.READY:
            self._board.follow(LifeEvent.SUSPECT, last_failure=failure.sentence)

    def _recover(self) -> None:
        if self._board.state is WorkerState.UNHEALTHY:
            self._board.follow(LifeEvent.RECOVERED)

    async def _ask(
        self,
        question: Callable[[], Awaitable[float | None]],
        limit_s: float = float("inf"),
        *,
        late: ProbeFailure | None = None,
    ) -> _Asked | None:
        """
        The answer or the failure; after `limit_s` seconds `late`. None when something urgent came between, or after the
        limit without `late`.
        """
        found: list[_Asked] = []

        async def ask() -> None:
            try:
                found.append(_Asked(value=await question()))
            except ProbeFailure as exc:
                found.append(_Asked(failed=exc))

        async def ask_within_limit() -> None:
            passed = await finished_within(self._sleep, limit_s, ask)
            if not passed and late is not None:
                found.append(_Asked(failed=late))

        await self._inbox.unless_urgent(ask if limit_s == float("inf") else ask_within_limit)
        return found[0] if found else None


@dataclass(frozen=True, slots=True)
class _Asked:
    value: float | None = None
    failed: ProbeFailure | None = None


def _failure(reason: str, sentence: str) -> StartFailure:
    return StartFailure(reason, sentence, permanent=False)
