"""
The gateway's data plane in this process: real uvicorn, real sockets, real fleet view, routing and relay, in front of
static workers. Only the supervisor, the metrics board and the log are left out: a recorder keeps the records instead.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal, Protocol

import uvicorn

from gateway.admission import Admission, QueueLimits
from gateway.api.application import create_app
from gateway.api.authentication import Authenticator
from gateway.api.server_protocol import GatewayProtocol
from gateway.clock import SystemClock
from gateway.fleet import FleetDispatcher, FleetView, WorkerLease
from gateway.gaps import TokenGaps
from gateway.messages import WorkerFailure
from gateway.proxy.interfaces import Tracer
from gateway.proxy.policy import ModelPolicy, RelayPolicy, TimeLimits
from gateway.proxy.pool import ConnectionPools
from gateway.proxy.relay import Relay
from gateway.record import ExchangeRecord
from gateway.routing import Router
from gateway.types import FleetSnapshot, ModelView, Phase, WorkerAddress, WorkerState, WorkerView


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a state that nobody announces; the test's own deadline limits it."""
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


class Listening(Protocol):
    """What a worker must offer: `FaultServer` does."""

    host: str
    port: int
    uds: str | None


class Records:
    """A `Recorder` that keeps everything."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.finished_records: list[ExchangeRecord] = []
        self.gaps = 0
        self._token_gaps = TokenGaps((), self._count)
        self._changed = asyncio.Event()

    def started(self, model: str, tenant: str | None) -> None:
        self.in_flight += 1

    def inter_token(self, model: str) -> TokenGaps:
        return self._token_gaps

    def _count(self, counts: list[int], total_s: float) -> None:
        self.gaps += sum(counts)

    def finished(self, record: ExchangeRecord) -> None:
        self._token_gaps.flush()
        self.in_flight -= 1
        self.finished_records.append(record)
        self._changed.set()

    async def record(self, index: int = 0) -> ExchangeRecord:
        """The record with that number, once its exchange has ended."""
        while len(self.finished_records) <= index:
            self._changed.clear()
            await self._changed.wait()
        return self.finished_records[index]


@dataclass
class Served:
    """A running gateway. `port` is its public port, `paths` says which path it relays on."""

    port: int
    direct: bool
    relay: Relay
    pools: ConnectionPools
    view: FleetView
    records: Records
    server: uvicorn.Server
    admission: Admission[WorkerLease]
    failures: list[WorkerFailure] = field(default_factory=list)
    _versions: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def publish(self, workers: Sequence[WorkerView], *, models: Sequence[ModelView] | None = None) -> None:
        """Give the gateway another snapshot."""
        known = models if models is not None else self.view.snapshot.models
        self.view.apply(FleetSnapshot(next(self._versions), tuple(known), tuple(workers)))

    async def reached(self, phase: Phase) -> None:
        """Wait until some exchange is in `phase`."""
        await until(lambda: any(exchange.phase is phase for exchange in self.relay.active))

    def stalled(self) -> bool:
        """Some exchange has stopped reading its worker, because its client takes nothing."""
        answers = (exchange.attempt.answer for exchange in self.relay.active if exchange.attempt is not None)
        return any(answer is not None and not answer.connection.reading for answer in answers)

    async def idle(self) -> None:
        """Wait until nothing is in flight anywhere (invariant 8); the test's own deadline limits it."""
        await until(lambda: not self.busy())

    def busy(self) -> dict[str, int]:
        """Every count that must be zero at idle, by name; only those that are not."""
        counts = {
            "exchanges": len(self.relay.active),
            "records": self.records.in_flight,
            "leases": self.view.in_flight,
            "waiting": self.admission.waiting,
            "bodies": self.relay.bodies.held_bytes,
            "connections": sum(count.in_use for count in self.pools.counts()),
        }
        return {name: count for name, count in counts.items() if count}


def worker_view(
    server: Listening | None = None,
    name: str = "w0",
    *,
    model: str = "sim",
    state: WorkerState = WorkerState.READY,
    **extra: object,
) -> WorkerView:
    """A static worker at a server's address."""
    address = WorkerAddress(host=server.host, port=server.port, uds=server.uds) if server else None
    values = {"launch_id": f"{name}-1", "changed_at_s": 0.0, "was_ready_at_s": 0.0, "address": address, **extra}
    return WorkerView(name=name, model=model, state=state, **values)  # type: ignore[arg-type]


@contextmanager
def full_backlog() -> Iterator[WorkerAddress]:
    """An address on loopback where connecting neither succeeds nor fails: its queue of new connections is full."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            with suppress(BlockingIOError):
                filler.connect(listener.getsockname())
        yield WorkerAddress(host="127.0.0.1", port=listener.getsockname()[1])


def model_policy(**limits: float) -> ModelPolicy:
    """A policy with these time limits."""
    return ModelPolicy(limits=TimeLimits(**limits))


@asynccontextmanager
async def gateway(
    *workers: Listening | WorkerView,
    direct: bool = True,
    policy: ModelPolicy | None = None,
    relay_policy: Callable[[RelayPolicy], RelayPolicy] | None = None,
    models: Sequence[ModelView] = (ModelView("sim", ("alias",), 1),),
    authenticator: Authenticator | None = None,
    cors_origins: Sequence[str] = (),
    idle_expiry_s: float = 2.5,
    keep_alive_s: int = 120,
    tracer: Tracer | None = None,
    http: type[asyncio.Protocol] | Literal["h11", "httptools"] = GatewayProtocol,
    permits: Mapping[str, int] | None = None,
    queues: Mapping[str, QueueLimits] | None = None,
) -> AsyncIterator[Served]:
    """
    A gateway in front of `workers` (named w0, w1, ... unless they are views).

    Leaving it waits for the server's end, so that nothing of it outlives the test.
    """
    clock = SystemClock()
    view = FleetView(clock)
    failures: list[WorkerFailure] = []
    fleet = FleetDispatcher(view, Router(), clock, failures.append, permits)
    dispatcher = Admission(fleet, clock, queues)
    records = Records()
    pools = ConnectionPools(idle_expiry_s=idle_expiry_s)
    rules = RelayPolicy(fallback=policy or ModelPolicy(), direct=direct)
    if relay_policy is not None:
        rules = relay_policy(rules)
    relay = Relay(dispatcher, records, pools, rules, tracer)
    app = create_app(relay, view, authenticator=authenticator, cors_origins=cors_origins)
    config = uvicorn.Config(
        app,
        http=http,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=keep_alive_s,
        timeout_graceful_shutdown=1,
    )
    sock = socket.socket()
    sock.bind(("127.0.0.1", 0))
    server = uvicorn.Server(config)
    served = Served(sock.getsockname()[1], direct, relay, pools, view, records, server, dispatcher, failures)
    views = [
        worker if isinstance(worker, WorkerView) else worker_view(worker, f"w{index}")
        for index, worker in enumerate(workers)
    ]
    served.publish(views, models=models)
    config.load()
    server.lifespan = config.lifespan_class(config)
    await server.startup([sock])
    await server.on_tick(0)
    try:
        yield served
    finally:
        relay.shut_down()
        pools.close()
        for listener in server.servers:
            listener.close()
        for connection in list(server.server_state.connections):
            connection.transport.abort()
        while server.server_state.tasks:
            await asyncio.wait(server.server_state.tasks)
