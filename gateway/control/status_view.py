"""`gateway status` for people: the report as text and a table."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gateway.control.progress import elapsed
from gateway.control.status_report import StatusReport, WorkerLine
from gateway.types import WorkerState

_COLOUR = {
    WorkerState.READY: "green",
    WorkerState.STARTING: "yellow",
    WorkerState.DRAINING: "yellow",
    WorkerState.STOPPING: "yellow",
    WorkerState.BACKOFF: "red",
    WorkerState.UNHEALTHY: "red",
    WorkerState.FAILED: "bold red",
    WorkerState.STOPPED: "dim",
}


def status_view(report: StatusReport) -> RenderableType:
    """The whole report: addresses, models, workers, then failures in full (a table would cut them)."""
    serving = sum(process.serving for process in report.gateway_processes)
    head = Text(
        f"vllm-gateway {report.version}  pid {report.pid}  up {elapsed(report.uptime_s)}"
        f"{'  stopping' if report.draining else ''}\n"
        f"clients {report.public_url}/v1  admin {report.admin_url}  "
        f"gateway processes {serving} of {len(report.gateway_processes)}\n"
        + "\n".join(
            f"model {model.name}: {model.ready} of {model.workers} workers ready"
            + (f"  (also {', '.join(model.aliases)})" if model.aliases else "")
            for model in report.models
        )
    )
    failures = [
        Text(f"{worker.name}: {worker.last_failure}", style="red" if _is_down(worker) else "dim")
        for worker in report.workers
        if worker.last_failure
    ]
    return Group(head, _table(report), *failures)


def _table(report: StatusReport) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("WORKER", "MODEL", "STATE", "AGE", "PID", "ADDRESS", "GPU"):
        table.add_column(title, no_wrap=title != "STATE")
    table.add_column("IN FLIGHT", justify="right", no_wrap=True)
    table.add_column("RESTARTS", justify="right", no_wrap=True)
    for worker in report.workers:
        colour = _COLOUR[worker.state]
        table.add_row(
            escape(worker.name),
            escape(worker.model),
            f"[{colour}]{worker.state}[/]{escape(_doing(worker))}",
            elapsed(worker.age_s),
            "-" if worker.pid is None else str(worker.pid),
            escape(worker.address) or "-",
            ",".join(map(str, worker.gpus)) or "-",
            str(worker.in_flight),
            str(worker.restarts),
        )
    return table


def _doing(worker: WorkerLine) -> str:
    if worker.state is not WorkerState.STARTING or not worker.phase:
        return ""
    return f": {worker.phase}" + ("" if worker.progress is None else f" ({worker.progress:.0%})")


def _is_down(worker: WorkerLine) -> bool:
    return worker.state in (WorkerState.FAILED, WorkerState.BACKOFF, WorkerState.UNHEALTHY)
