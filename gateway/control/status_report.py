"""What `gateway status` and `GET /status` say: a JSON document that is part of the public interface."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import msgspec

from gateway.config.settings import Settings
from gateway.control.gateway_process import GatewaySlot, ProcessState
from gateway.control.operations import OperationReport
from gateway.control.quarantine import QuarantinedGpu
from gateway.control.vitals import Vitals
from gateway.metrics import Values
from gateway.types import WorkerAddress, WorkerState
from gateway.workers.status import WorkerStatus


class WorkerLine(msgspec.Struct, frozen=True):
    """
    One worker. `age_s`: seconds in this state; `address`: `HOST:PORT` or `unix:PATH`, "" without a process.

    `port` is None for a Unix socket; `restarts` counts all, `restart_reasons` by reason; `last_failure` is a sentence,
    "" when there was none. `tokens_per_s` (over the last seconds) and `kv_usage` (0 to 1) are None where not known.
    """

    name: str
    model: str
    state: WorkerState
    age_s: float
    phase: str
    progress: float | None
    pid: int | None
    address: str
    port: int | None
    gpus: tuple[int, ...]
    in_flight: int
    restarts: int
    last_failure: str
    static: bool
    max_model_len: int | None
    engine_version: str
    log_file: str
    restart_reasons: dict[str, int] = {}
    tokens_per_s: float | None = None
    kv_usage: float | None = None


class ModelLine(msgspec.Struct, frozen=True):
    """One public model: how many of its workers may serve, and how many requests wait for one that has room."""

    name: str
    aliases: tuple[str, ...]
    ready: int
    workers: int
    waiting: int = 0


class GatewayProcessLine(msgspec.Struct, frozen=True):
    """
    One gateway process. A slot has one that is not LEAVING, and while replaced ones finish their streams, those too.

    `age_s`: seconds in this state; `connections`: of clients, as of its last report; `in_flight`: requests begun and
    not counted as ended (0.05 s later);
    `restarts`: after crashes; `release`: of its code, "" before it has said so; `compiled`: its hot modules are.
    """

    slot: int
    pid: int | None
    serving: bool
    restarts: int
    state: ProcessState = ProcessState.SERVING
    age_s: float = 0.0
    connections: int = 0
    in_flight: int = 0
    release: str = ""
    compiled: bool = False


class StatusReport(msgspec.Struct, frozen=True):
    """
    The whole fleet at one moment. `uptime_s`: since the supervisor started. `operation`: the latest reload or rolling
    restart. `in_flight`: attempts of all gateway processes on all workers, past launches included; zero at idle.
    `quarantined_gpus`: no worker is started on them.
    """

    pid: int
    version: str
    uptime_s: float
    draining: bool
    public_url: str
    admin_url: str
    models: tuple[ModelLine, ...]
    workers: tuple[WorkerLine, ...]
    gateway_processes: tuple[GatewayProcessLine, ...]
    operation: OperationReport = OperationReport()
    in_flight: int = 0
    quarantined_gpus: tuple[QuarantinedGpu, ...] = ()

    def to_json(self) -> bytes:
        """As served."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, text: bytes) -> StatusReport:
        """As read by the command line. Raises msgspec.DecodeError."""
        return msgspec.json.decode(text, type=cls)


def model_lines(
    settings: Settings, statuses: Sequence[WorkerStatus], queue_depths: Values | None = None
) -> tuple[ModelLine, ...]:
    """Models in configuration order; `queue_depths`: the series of QUEUE_DEPTH, the model their first label."""
    waiting: Counter[str] = Counter()
    for (_, labels), cells in (queue_depths or {}).items():
        waiting[labels[0]] += int(cells[0])
    workers = Counter(each.model for each in statuses)
    ready = Counter(each.model for each in statuses if each.state is WorkerState.READY)
    return tuple(
        ModelLine(
            name=name,
            aliases=tuple(model.aliases),
            ready=ready[name],
            workers=workers[name],
            waiting=waiting[name],
        )
        for name, model in settings.models.items()
    )


def worker_lines(
    statuses: Sequence[WorkerStatus],
    now_s: float,
    in_flight: Callable[[str], int],
    vitals: Callable[[str, str], Vitals] = lambda worker, launch_id: Vitals(),
) -> tuple[WorkerLine, ...]:
    """Workers in configuration order; `now_s` is CLOCK_MONOTONIC."""
    looks = {status.name: vitals(status.name, status.launch_id) for status in statuses}
    return tuple(
        WorkerLine(
            name=status.name,
            model=status.model,
            state=status.state,
            age_s=round(max(0.0, now_s - status.changed_at_s), 3),
            phase=status.phase,
            progress=status.progress,
            pid=status.pid,
            address=_shown(status.address),
            port=status.address.port or None if status.address is not None else None,
            gpus=status.gpus,
            in_flight=in_flight(status.name),
            restarts=status.restarts,
            last_failure=status.last_failure,
            static=status.static,
            max_model_len=status.max_model_len,
            engine_version=status.engine_version,
            log_file=status.log_file,
            restart_reasons=dict(status.restart_reasons),
            tokens_per_s=looks[status.name].tokens_per_s,
            kv_usage=looks[status.name].kv_usage,
        )
        for status in statuses
    )


def process_line(process: GatewaySlot, now_s: float) -> GatewayProcessLine:
    """One gateway process as of now; `now_s` is CLOCK_MONOTONIC."""
    return GatewayProcessLine(
        slot=process.slot,
        pid=process.pid,
        serving=process.state is ProcessState.SERVING,
        restarts=process.restarts,
        state=process.state,
        age_s=round(max(0.0, now_s - process.since_s), 3),
        connections=process.connections,
        in_flight=process.in_flight,
        release=process.release,
        compiled=process.compiled,
    )


def _shown(address: WorkerAddress | None) -> str:
    if address is None:
        return ""
    if address.uds:
        return f"unix:{address.uds}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}" if host else ""
