"""`gateway status` as text: what it says, and in how many columns."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace
from rich.console import Console

from gateway.clock import SystemClock
from gateway.control.gateway_process import ProcessState
from gateway.control.operations import OperationReport
from gateway.control.quarantine import quarantined_gpus
from gateway.control.status_report import (
    GatewayProcessLine,
    ModelLine,
    StatusReport,
    WorkerLine,
    model_lines,
    worker_lines,
)
from gateway.control.status_view import COLUMNS, status_view
from gateway.metrics.catalogue import QUEUE_DEPTH
from gateway.types import WorkerAddress, WorkerState
from gateway.workers.gpu_pool import GpuPool
from gateway.workers.gpus import Quarantine
from gateway.workers.nvml import Nvml
from gateway.workers.placement import Gpu
from gateway.workers.status import WorkerStatus
from tests.control.fakes import settings
from tests.workers.fake_nvml import FakeNvml


def worker(name: str, **changes: object) -> WorkerLine:
    figures: dict[str, object] = {
        "name": name,
        "model": "Qwen/Qwen3-8B",
        "state": WorkerState.READY,
        "age_s": 7265.0,
        "phase": "",
        "progress": None,
        "pid": 4194304,
        "address": "127.0.0.1:65535",
        "port": 65535,
        "gpus": (0, 1, 2, 3),
        "in_flight": 1024,
        "restarts": 12,
        "last_failure": "",
        "static": False,
        "max_model_len": 131072,
        "engine_version": "0.32.0",
        "log_file": "/var/lib/vllm-gateway/logs/Qwen-Qwen3-8B-0.log",
        "restart_reasons": {"exited": 8, "hung": 4},
        "tokens_per_s": 18656.4,
        "kv_usage": 0.874,
    }
    return WorkerLine(**{**figures, **changes})  # type: ignore[arg-type]


ALONE = (GatewayProcessLine(slot=0, pid=1, serving=True, restarts=0),)


def process(slot: int, state: ProcessState, **changes: object) -> GatewayProcessLine:
    figures: dict[str, object] = {
        "slot": slot,
        "pid": 4194304,
        "serving": state is ProcessState.SERVING,
        "restarts": 12,
        "state": state,
        "age_s": 7265.0,
        "connections": 12345,
        "in_flight": 1024,
        "release": "0.1.0",
        "compiled": True,
    }
    return GatewayProcessLine(**{**figures, **changes})  # type: ignore[arg-type]


def report(
    *workers: WorkerLine,
    operation: OperationReport | None = None,
    processes: tuple[GatewayProcessLine, ...] = ALONE,
) -> StatusReport:
    return StatusReport(
        pid=4194304,
        version="0.1.0",
        uptime_s=100000.0,
        draining=False,
        public_url="http://127.0.0.1:8000",
        admin_url="http://127.0.0.1:8001",
        models=(ModelLine(name="Qwen/Qwen3-8B", aliases=("default",), ready=1, workers=2),),
        workers=workers,
        gateway_processes=processes,
        operation=operation or OperationReport(),
    )


def printed(shown: StatusReport, columns: int, *, wide: bool = False) -> list[str]:
    console = Console(file=io.StringIO(), width=columns)
    console.print(status_view(shown, wide=wide, columns=columns))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def test_the_largest_figures_fit_a_hundred_columns() -> None:
    """All of them whole; only names and phases may fold."""
    starting = worker("Qwen-Qwen3-8B-1", state=WorkerState.STARTING, phase="loading weights", progress=0.45)
    lines = printed(report(worker("Qwen-Qwen3-8B-0"), starting), COLUMNS)
    text = "\n".join(lines)

    assert max(map(len, lines)) <= COLUMNS
    for figure in ("2:01:05", "0,1,2,3", "65535", "4194304", "1024", "18656", "87%", "12", "ready", "starting"):
        assert figure in text
    assert "Qwen-Qwen3-8B-0: restarted 12 times (exited 8, hung 4)." in text
    assert "model Qwen/Qwen3-8B: 1 of 2 workers ready, 0 requests waiting  (also default)" in text


@pytest.mark.parametrize(("waiting", "shown"), [(1, "1 request waiting"), (4096, "4096 requests waiting")])
def test_each_model_shows_how_many_requests_wait_for_a_worker(waiting: int, shown: str) -> None:
    """All of its priorities together; another model's are not its own."""
    depths = {
        (QUEUE_DEPTH, ("m", "default")): [waiting - 1.0],
        (QUEUE_DEPTH, ("m", "low")): [1.0],
        (QUEUE_DEPTH, ("other", "default")): [7.0],
    }
    (model,) = model_lines(settings(), (), depths)
    lines = printed(replace(report(), models=(model,)), COLUMNS)

    assert waiting == model.waiting
    assert f"model m: 0 of 0 workers ready, {shown}" in lines


@pytest.mark.parametrize("columns", [COLUMNS, 50])
def test_a_gpu_out_of_use_is_shown_with_its_reason_and_the_way_back(columns: int) -> None:
    """In full, whatever the width, lowest index first; a GPU that is in use is not among them."""
    pool = GpuPool(Nvml(FakeNvml(3)), [Gpu(index) for index in range(3)], clock=SystemClock())
    pool.quarantine(2, Quarantine("70.0 GiB are in use", free_again_below=1))
    pool.quarantine(0, Quarantine("the driver reported Xid 79"))
    shown = StatusReport.from_json(replace(report(), quarantined_gpus=quarantined_gpus(pool)).to_json())
    text = " ".join(" ".join(printed(shown, columns)).split())

    assert (
        "GPU 0 is out of use: the driver reported Xid 79; when it is mended, `gateway gpus return 0` has it used again "
        "GPU 2 is out of use: 70.0 GiB are in use; it is used again by itself once that memory is free, or at once "
        "after `gateway gpus return 2`"
    ) == text[text.index("GPU 0") :]
    assert "GPU 1" not in text
    assert "out of use" not in " ".join(printed(report(), columns))


@pytest.mark.parametrize("columns", [50, 60, 79])
def test_a_narrow_terminal_keeps_the_state(columns: int) -> None:
    lines = printed(report(worker("Qwen-Qwen3-8B-0", state=WorkerState.UNHEALTHY)), columns)
    (header,) = (line for line in lines if line.startswith("WORKER"))

    assert max(map(len, lines)) <= columns
    assert ["WORKER", "STATE", "AGE", "PID", "REQS"] == header.split()
    assert any("unhealthy" in line and "1024" in line for line in lines)


def test_several_gateway_processes_have_a_table_of_their_own() -> None:
    """Those that leave are in it and not in the count; one process alone needs no table."""
    several = (
        process(0, ProcessState.SERVING),
        process(1, ProcessState.BACKOFF, pid=None, connections=0, in_flight=0),
        process(0, ProcessState.LEAVING, release="0.0.9", compiled=False),
    )
    lines = printed(report(processes=several), COLUMNS)
    alone = printed(report(), COLUMNS)

    rows = [line.split() for line in lines[lines.index("") + 1 :]]
    assert max(map(len, lines)) <= COLUMNS
    assert any("gateway processes 1 of 2" in line for line in lines)
    assert ["PROCESS", "STATE", "AGE", "PID", "CONNS", "REQS", "RESTARTS", "RELEASE"] == rows[0]
    assert ["0", "serving", "2:01:05", "4194304", "12345", "1024", "12", "0.1.0"] == rows[1]
    assert ["1", "backoff", "2:01:05", "-", "0", "0", "12", "0.1.0"] == rows[2]
    assert ["0", "leaving", "2:01:05", "4194304", "12345", "1024", "12", "0.0.9", "(sources)"] == rows[3]
    assert not any(line.startswith("PROCESS") for line in alone)


def test_a_narrow_terminal_shows_the_processes_too() -> None:
    lines = printed(report(processes=(process(0, ProcessState.SERVING), process(1, ProcessState.STARTING))), 50)

    assert max(map(len, lines)) <= 50
    assert ["1", "starting", "2:01:05", "4194304", "1024"] == lines[-1].split()


def test_wide_shows_the_rest() -> None:
    text = "\n".join(printed(report(worker("m-0")), 240, wide=True))

    for detail in ("127.0.0.1:65535", "131072", "0.32.0", "Qwen-Qwen3-8B-0.log"):
        assert detail in text


def test_markup_in_foreign_text_is_not_interpreted() -> None:
    lines = printed(report(worker("m-0", last_failure="it said [red]no[/red]", restart_reasons={})), COLUMNS)

    assert "m-0: it said [red]no[/red]" in lines


def test_an_operation_under_way_is_told() -> None:
    running = OperationReport(3, "reload", ("m-0: out of rotation",), running=True)

    assert "reload under way: m-0: out of rotation" in printed(report(worker("m-0"), operation=running), COLUMNS)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        (WorkerAddress(host="::1", port=9000), "[::1]:9000"),
        (WorkerAddress(host="10.0.0.1", port=9000), "10.0.0.1:9000"),
        (WorkerAddress(uds="/run/w.sock"), "unix:/run/w.sock"),
        (WorkerAddress(host="", port=0), ""),
        (None, ""),
    ],
)
def test_a_worker_s_address_is_one_that_can_be_typed(address: WorkerAddress | None, shown: str) -> None:
    """Where a port ends an address of IPv6, the address has brackets."""
    status = WorkerStatus("m-0", "m", WorkerState.READY, "l", address, 0.0)
    (line,) = worker_lines([status], 1.0, lambda name: 0)

    assert shown == line.address
