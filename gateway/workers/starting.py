"""From a launched process to a READY worker: phases for people, questions for the truth."""

from __future__ import annotations

from gateway.types import WorkerAddress
from gateway.workers.failures import StartFailure, classify_start_failure
from gateway.workers.inbox import Order, WorkerCommand
from gateway.workers.phases import LAUNCHED, WARMING, StartPhase, phase_after
from gateway.workers.running import Running
from gateway.workers.services import ModelFacts, ProbeFailure
from gateway.workers.start_deadline import StartDeadline
from gateway.workers.warm_up import features

POLL_S = 0.5
WARM_UP_TIMEOUT_S = 120.0
"""The first request may compile kernels; more than ten seconds were seen on small models."""
WARM_UP_TRIES = 3
ADOPTION_TIMEOUT_S = 60.0
"""A worker that was READY under an earlier supervisor and does not answer for so long is started anew."""


class StartFailed(Exception):
    """
    The start is over, without success.

    `failure` None: the worker's output must tell (it is complete only once the processes are gone).
    """

    def __init__(self, failure: StartFailure | None = None, *, timed_out: bool = False) -> None:
        self.failure = failure
        self.timed_out = timed_out
        super().__init__(failure.sentence if failure else "")


class Starting:
    """Brings one launch to READY. Used once."""

    def __init__(self, running: Running, *, was_ready: bool = False) -> None:
        """`was_ready`: an adopted worker that served before; it has to answer soon, and needs no warm-up."""
        self._was_ready = was_ready
        self._spec = spec = running.spec
        self._services = services = running.services
        self._board = running.board
        self._inbox = running.inbox
        self._process = running.process
        self._prober = running.prober
        self._tail = running.tail
        self._phase = LAUNCHED
        self._warm_up_failures = 0
        limit_s = ADOPTION_TIMEOUT_S if was_ready else spec.launch.start_timeout_s
        self._deadline = StartDeadline(limit_s, services.clock.monotonic())
        self._to_try = list(features(spec))

    async def run(self, address: WorkerAddress) -> ModelFacts | Order:
        """
        Until the worker answers like the one we launched, or an order wants it gone.

        Raises:
            StartFailed: it exited, took too long, or turned out wrong.
        """
        while True:
            order = self._inbox.take()
            if order is not None and order.command is not WorkerCommand.START:
                return order
            self._read_log()
            if self._process.returncode is not None:
                raise StartFailed
            if self._deadline.passed(self._services.clock.monotonic()):
                raise StartFailed(timed_out=True)
            answered = await self._inbox.unless_urgent(lambda: self._ask(address))
            if answered is not None and answered.value is not None:
                return answered.value
            await self._inbox.pause(POLL_S)

    def failure(self, exit_status: int | None, *, timed_out: bool) -> StartFailure:
        """What the output says, once it is complete."""
        return classify_start_failure(
            list(self._tail.last_lines),
            model=self._spec.model,
            source=self._spec.source,
            exit_status=exit_status,
            timed_out_s=self._deadline.took_s(self._services.clock.monotonic()) if timed_out else None,
        )

    async def _ask(self, address: WorkerAddress) -> ModelFacts | None:
        """Health, identity, name, one token; None while it is not there yet."""
        try:
            await self._prober.health()
            # vLLM listens only when it can serve, so whoever answers before that is somebody else.
            if self._process.listens_on(address) is False:
                raise StartFailed(_port_taken(address))
            facts = await self._prober.facts()
        except ProbeFailure:
            return None
        if self._spec.model not in facts.names:
            raise StartFailed(_wrong_name(self._spec.model, facts.names))
        if self._was_ready:
            return facts
        missing = [name for name in self._spec.launch.lora_modules if name not in facts.names]
        if missing:
            raise StartFailed(_no_adapter(self._spec.model, missing[0]))
        try:
            await self._warm_up()
        except ProbeFailure as exc:
            self._warm_up_failures += 1
            if self._warm_up_failures >= WARM_UP_TRIES:
                raise StartFailed(_cold(exc.detail)) from exc
            return None
        return facts

    async def _warm_up(self) -> None:
        """One request of each kind; those that were answered are not repeated when a later one fails."""
        self._phase = WARMING
        self._board.show(WARMING)
        await self._prober.generate(WARM_UP_TIMEOUT_S)
        while self._to_try:
            feature = self._to_try[0]
            self._board.show(StartPhase(f"warming up, {feature.name}", WARMING.progress))
            await self._prober.try_feature(feature, WARM_UP_TIMEOUT_S)
            self._to_try.pop(0)

    def _read_log(self) -> None:
        before = self._phase
        lines = self._tail.read()
        self._phase = phase_after(before, lines)
        self._deadline.saw(self._services.clock.monotonic(), lines, new_phase=self._phase != before)
        self._board.show(self._phase)


def _port_taken(address: WorkerAddress) -> StartFailure:
    return StartFailure(
        "port_in_use",
        f"Another process answers on {address.uds or f'port {address.port}'} that was meant for the worker; it is "
        "started again on another port.",
        permanent=False,
    )


def _wrong_name(expected: str, found: tuple[str, ...]) -> StartFailure:
    names = ", ".join(found) or "nothing"
    return StartFailure(
        "wrong_name",
        f"The worker serves {names} instead of {expected}; take --served-model-name out of "
        f"models.{expected}.launch.extra_args.",
        permanent=True,
    )


def _no_adapter(model: str, adapter: str) -> StartFailure:
    return StartFailure(
        "no_adapter",
        f"The worker does not list the adapter {adapter}; correct models.{model}.launch.lora_modules, and set "
        f"models.{model}.launch.enable_lora: true.",
        permanent=True,
    )


def _cold(detail: str) -> StartFailure:
    return StartFailure(
        "warm_up",
        f"The worker started but did not answer its warm-up requests of one token: {detail}.",
        permanent=False,
    )
