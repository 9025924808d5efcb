"""A worker that somebody else starts and stops: probed, put in and out of rotation, never touched."""

from __future__ import annotations

import ssl

import anyio

from gateway.errors import ConfigurationError, GatewayError
from gateway.types import WorkerAddress, WorkerState
from gateway.workers.addresses import static_address
from gateway.workers.board import OnChange
from gateway.workers.inbox import Order, WorkerCommand
from gateway.workers.lifecycle import LifeEvent, allows
from gateway.workers.owner import WorkerOwner
from gateway.workers.services import ModelFacts, ProbeFailure, Prober, WorkerServices
from gateway.workers.serving import LOOK_GAP_S
from gateway.workers.spec import WorkerSpec
from gateway.workers.watch import Health, HealthPatience

_START = Order(WorkerCommand.START)


class StaticWorkerActor(WorkerOwner):
    """
    Owns our view of one static worker (`gateway.workers.actor.Actor` has the contract of each method).

    STOPPED means that we do not use it. Each time it comes back after being unhealthy counts as a new launch, because
    the process behind the URL may be another one.
    """

    def __init__(self, spec: WorkerSpec, services: WorkerServices, on_change: OnChange) -> None:
        super().__init__(spec, services, on_change)
        self._look_now = False

    def report_failure(self, kind: str, detail: str, *, launch_id: str | None = None) -> None:
        self._look_now = True
        self._inbox.nudge()

    def report_load(self, in_flight: int, silent_s: float | None, *, launch_id: str | None = None) -> None:
        """Nothing follows from it: what is not ours is not killed."""

    async def run(self) -> None:
        order = _START
        while order.command is not WorkerCommand.SHUTDOWN:
            if order.command in (WorkerCommand.START, WorkerCommand.RESTART):
                order = await self._use()
            else:
                self._leave()
                order = await self._inbox.next()
        self._leave()

    async def _use(self) -> Order:
        """Probe until an order comes that is not START or DRAIN; that order."""
        self._leave()
        self._board.follow(
            LifeEvent.START,
            launch_id=self._services.new_launch_id(),
            started_at_s=self._services.clock.monotonic(),
            phase="waiting for it to answer",
        )
        try:
            address, key = self._where()
            prober = self._services.prober(address, key, self._spec.model)
        except (GatewayError, OSError, ssl.SSLError) as exc:
            self._board.follow(LifeEvent.FALL)
            self._board.follow(LifeEvent.GONE_GIVE_UP, phase="", last_failure=f"The worker cannot be used: {exc}.")
            return await self._inbox.next()
        self._board.api_key = key
        self._board.set(address=address)
        try:
            return await self._probe(prober)
        finally:
            with anyio.CancelScope(shield=True):
                await prober.aclose()

    async def _probe(self, prober: Prober) -> Order:
        patience = HealthPatience(self._spec.watch)
        while True:
            order = self._inbox.take()
            if order is not None:
                if order.command is WorkerCommand.START:
                    if self._board.state is WorkerState.DRAINING:
                        self._board.follow(LifeEvent.START)
                elif order.command is WorkerCommand.DRAIN and allows(self._board.state, LifeEvent.DRAIN):
                    self._board.follow(LifeEvent.DRAIN)
                else:
                    return order
            answered = await self._inbox.unless_urgent(lambda: self._ask(prober))
            if answered is None:
                continue
            if isinstance(answered.value, ModelFacts):
                patience.answered()
                self._good(answered.value)
            else:
                health = patience.missed(dead=answered.value.dead, progressing=True)
                self._bad(health, answered.value.detail)
            await self._rest_between_probes()

    async def _rest_between_probes(self) -> None:
        """The usual interval; only LOOK_GAP_S when a gateway process reports a failure."""
        began_s = self._services.clock.monotonic()
        due_s = began_s + self._spec.watch.probe_interval_s
        while (now_s := self._services.clock.monotonic()) < due_s and not self._inbox.order_waits():
            if self._look_now:
                due_s = min(due_s, max(now_s, began_s + LOOK_GAP_S))
                self._look_now = False
            else:
                await self._inbox.pause(due_s - now_s)

    async def _ask(self, prober: Prober) -> ModelFacts | ProbeFailure:
        try:
            await prober.health()
            facts = await prober.facts()
        except ProbeFailure as exc:
            return exc
        if self._spec.model not in facts.names:
            served = ", ".join(facts.names) or "nothing"
            return ProbeFailure(
                f"it serves {served}; start it with --served-model-name {self._spec.model}, or rename the model",
                dead=True,
            )
        return facts

    def _good(self, facts: ModelFacts) -> None:
        told = {"max_model_len": facts.max_model_len, "engine_version": facts.engine_version}
        if self._board.state is WorkerState.STARTING:
            self._board.follow(LifeEvent.WARM, phase="", **told)
        elif self._board.state is WorkerState.UNHEALTHY:
            self._board.follow(LifeEvent.RECOVERED, launch_id=self._services.new_launch_id(), **told)

    def _bad(self, health: Health, detail: str) -> None:
        sentence = f"The worker does not answer as it should: {detail}."
        if self._board.state is WorkerState.STARTING:
            self._board.set(last_failure=sentence)
        elif self._board.state is WorkerState.READY and health is not Health.DOUBTFUL:
            self._board.follow(LifeEvent.SUSPECT, last_failure=sentence)

    def _leave(self) -> None:
        """Use it no more."""
        if allows(self._board.state, LifeEvent.END):
            self._board.follow(LifeEvent.END, phase="")
        if self._board.state is WorkerState.STOPPING:
            self._board.follow(LifeEvent.GONE)

    def _where(self) -> tuple[WorkerAddress, str | None]:
        static = self._spec.static
        if static is None:
            raise ConfigurationError(f"{self._spec.name} is launched by us and has no URL")
        key = static.api_key.get_secret_value() if static.api_key else None
        if static.api_key_file is not None:
            lines = static.api_key_file.read_text(encoding="utf-8").splitlines()
            key = lines[0].strip() if lines else None
            if not key:
                raise ConfigurationError(f"{static.api_key_file} has no key in its first line", key="api_key_file")
        return static_address(static), key
