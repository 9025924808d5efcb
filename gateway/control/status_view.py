"""`gateway status` for people: the report as text and a table of at most a hundred columns."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gateway.control.gateway_process import ProcessState
from gateway.control.progress import elapsed
from gateway.control.status_report import GatewayProcessLine, StatusReport, WorkerLine
from gateway.types import WorkerState

COLUMNS = 100
"""Of the table without --wide."""
NARROW = 80
"""Below so many columns the table has only what an operator looks for first."""

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


_PROCESS_COLOUR = {
    ProcessState.SERVING: "green",
    ProcessState.STARTING: "yellow",
    ProcessState.LEAVING: "yellow",
    ProcessState.BACKOFF: "red",
}


def status_view(report: StatusReport, *, wide: bool = False, columns: int = COLUMNS) -> RenderableType:
    """
    The whole report: addresses, models, workers, then restarts, failures and GPUs out of use in full (a table would
    cut them).
    """
    staying = [one for one in report.gateway_processes if one.state is not ProcessState.LEAVING]
    slots = {one.slot for one in staying or report.gateway_processes}
    serving = sum(process.serving for process in report.gateway_processes)
    head = Text(
        f"vllm-gateway {report.version}  pid {report.pid}  up {elapsed(report.uptime_s)}"
        f"{'  stopping' if report.draining else ''}\n"
        f"clients {report.public_url}/v1  admin {report.admin_url}  "
        f"gateway processes {serving} of {len(slots)}\n"
        + "\n".join(
            f"model {model.name}: {model.ready} of {model.workers} workers ready, "
            f"{model.waiting} request{'' if model.waiting == 1 else 's'} waiting"
            + (f"  (also {', '.join(model.aliases)})" if model.aliases else "")
            for model in report.models
        )
    )
    notes = [
        Text(f"{worker.name}: {note}", style="red" if _is_down(worker) else "dim")
        for worker in report.workers
        if (note := _note(worker))
    ]
    notes += [
        Text(f"GPU {each.gpu} is out of use: {each.reason}; {each.fix}", style="red")
        for each in report.quarantined_gpus
    ]
    if report.operation.running:
        last = report.operation.lines[-1] if report.operation.lines else "begun"
        notes.append(Text(f"{report.operation.name} under way: {last}", style="yellow"))
    tables: list[RenderableType] = [_table(report, wide=wide, narrow=columns < NARROW)]
    if wide or len(report.gateway_processes) > 1:
        tables += [Text(), _processes(report, narrow=columns < NARROW)]
    return Group(head, *tables, *notes)


def _processes(report: StatusReport, *, narrow: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("PROCESS", min_width=8)
    table.add_column("STATE", min_width=9)
    titles = ("AGE", "PID", "REQS") if narrow else ("AGE", "PID", "CONNS", "REQS", "RESTARTS", "RELEASE")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for process in report.gateway_processes:
        figures = {
            "AGE": elapsed(process.age_s),
            "PID": _or_dash(process.pid),
            "CONNS": str(process.connections),
            "REQS": str(process.in_flight),
            "RESTARTS": str(process.restarts),
            "RELEASE": _release(process),
        }
        state = f"[{_PROCESS_COLOUR[process.state]}]{process.state}[/]"
        table.add_row(str(process.slot), state, *(figures[title] for title in titles))
    return table


def _release(process: GatewayProcessLine) -> str:
    if not process.release:
        return "-"
    return escape(process.release) if process.compiled else f"{escape(process.release)} (sources)"


def _table(report: StatusReport, *, wide: bool, narrow: bool) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("WORKER", overflow="fold", min_width=8)
    if wide:
        table.add_column("MODEL", overflow="fold")
    table.add_column("STATE", overflow="fold", min_width=9)
    titles = ("AGE", "PID", "REQS") if narrow else ("AGE", "GPU", "PORT", "PID", "REQS", "TOK/S", "KV", "RESTARTS")
    for title in titles:
        table.add_column(title, justify="left" if title == "GPU" else "right", no_wrap=True)
    if wide:
        for title in ("ADDRESS", "CONTEXT", "ENGINE", "LOG"):
            table.add_column(title, overflow="fold")
    for worker in report.workers:
        cells = [escape(worker.name)]
        if wide:
            cells.append(escape(worker.model))
        cells.append(f"[{_COLOUR[worker.state]}]{worker.state}[/]{escape(_doing(worker))}")
        figures = _figures(worker)
        cells += [figures[title] for title in titles]
        if wide:
            cells += [
                escape(worker.address) or "-",
                _or_dash(worker.max_model_len),
                escape(worker.engine_version) or "-",
                escape(worker.log_file) or "-",
            ]
        table.add_row(*cells)
    return table


def _figures(worker: WorkerLine) -> dict[str, str]:
    return {
        "AGE": elapsed(worker.age_s),
        "GPU": ",".join(map(str, worker.gpus)) or "-",
        "PORT": "uds" if worker.address.startswith("unix:") else _or_dash(worker.port),
        "PID": _or_dash(worker.pid),
        "REQS": str(worker.in_flight),
        "TOK/S": "-" if worker.tokens_per_s is None else f"{worker.tokens_per_s:.0f}",
        "KV": "-" if worker.kv_usage is None else f"{worker.kv_usage:.0%}",
        "RESTARTS": str(worker.restarts),
    }


def _doing(worker: WorkerLine) -> str:
    if worker.state is not WorkerState.STARTING or not worker.phase:
        return ""
    return f": {worker.phase}" + ("" if worker.progress is None else f" ({worker.progress:.0%})")


def _note(worker: WorkerLine) -> str:
    """Why it was restarted how often, and its last failure in words."""
    said = []
    if worker.restart_reasons:
        reasons = ", ".join(f"{reason} {count}" for reason, count in sorted(worker.restart_reasons.items()))
        said.append(f"restarted {worker.restarts} times ({reasons}).")
    if worker.last_failure:
        said.append(worker.last_failure)
    return " ".join(said)


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)


def _is_down(worker: WorkerLine) -> bool:
    return worker.state in (WorkerState.FAILED, WorkerState.BACKOFF, WorkerState.UNHEALTHY)
