"""The GPUs as the supervisor reads them (NVML), and the workers' processes on the host."""

from __future__ import annotations

from grafana.page import Page, Section, Variable
from grafana.panels import Column, Judged, PanelBuilder, Query, grid, lines, tile
from grafana.promql import Scope, ratio
from grafana.variables import INSTANCE, JOB, SITE, worker_markers

GPU = Variable("gpu", "GPU", 'gateway_gpu_info{job=~"$job", instance=~"$instance"}', "Index of a GPU in PCI bus order.")
GPUS = Scope('job=~"$job", instance=~"$instance", gpu=~"$gpu"')
PROCESSES = Scope('worker!=""')
"""The API server process of every scraped worker: one host's, or those of all hosts that this Prometheus scrapes."""

USED = "gateway_gpu_memory_used_bytes"
TOTAL = "gateway_gpu_memory_total_bytes"
BUSY = "gateway_gpu_utilization_ratio"
HEAT = "gateway_gpu_temperature_celsius"
POWER = "gateway_gpu_power_watts"
LEASE = "gateway_gpu_lease"

NO_GPU = "no GPU"
HEAT_JUDGED = Judged(warn=80, bad=90)

TILES: list[PanelBuilder] = [
    tile(
        "GPUs",
        f"count({GPUS.series('gateway_gpu_info')})",
        "short",
        "GPUs that the supervisor can read: `gateway_gpu_info`.",
        no_value=NO_GPU,
        width=4,
    ),
    tile(
        "GPUs held by workers",
        f"count(count by (gpu, instance) ({GPUS.series(LEASE)} > 0))",
        "short",
        "GPUs that at least one worker holds: `gateway_gpu_lease`.",
        no_value="none",
        width=4,
    ),
    tile(
        "Memory used",
        ratio(GPUS.total(USED), GPUS.total(TOTAL)),
        "percentunit",
        "Of all GPUs, whoever uses it: `gateway_gpu_memory_used_bytes`, `gateway_gpu_memory_total_bytes`.",
        decimals=1,
        no_value=NO_GPU,
        width=4,
    ),
    tile(
        "Busy",
        f"avg({GPUS.series(BUSY)})",
        "percentunit",
        "Mean share of time in which some kernel ran; it says nothing of how much of a GPU it filled: "
        "`gateway_gpu_utilization_ratio`.",
        decimals=1,
        no_value=NO_GPU,
        width=4,
    ),
    tile(
        "Hottest",
        GPUS.highest(HEAT),
        "celsius",
        "Highest core temperature: `gateway_gpu_temperature_celsius`.",
        judged=HEAT_JUDGED,
        no_value=NO_GPU,
        width=4,
    ),
    tile(
        "Power",
        GPUS.total(POWER),
        "watt",
        "Drawn by all GPUs together: `gateway_gpu_power_watts`.",
        no_value=NO_GPU,
        width=4,
    ),
]


def _by_name(expression: str) -> str:
    """The GPU's product name joined on: the info metric is 1, so the value stays."""
    return f"{expression} * on (instance, gpu) group_left (name) {GPUS.highest('gateway_gpu_info', NAMED)}"


NAMED = ("instance", "gpu", "name")
EACH = ("instance", "gpu")

DEVICES: list[PanelBuilder] = [
    grid(
        "Sensors",
        NAMED,
        [
            Column("Memory used", _by_name(GPUS.highest(USED, EACH)), "bytes"),
            Column("Memory", _by_name(GPUS.highest(TOTAL, EACH)), "bytes"),
            Column("Busy", _by_name(GPUS.highest(BUSY, EACH)), "percentunit"),
            Column("Temperature", _by_name(GPUS.highest(HEAT, EACH)), "celsius", HEAT_JUDGED),
            Column("Power", _by_name(GPUS.highest(POWER, EACH)), "watt"),
        ],
        "One row for each GPU, as of now: `gateway_gpu_memory_used_bytes`, `gateway_gpu_memory_total_bytes`, "
        "`gateway_gpu_utilization_ratio`, `gateway_gpu_temperature_celsius`, `gateway_gpu_power_watts`, "
        "`gateway_gpu_info`.",
        no_value=NO_GPU,
        width=16,
    ),
    grid(
        "Who holds them",
        ("instance", "gpu", "model", "worker"),
        [Column("Held", GPUS.highest(LEASE, ("instance", "gpu", "model", "worker")), "bool_yes_no")],
        "Workers and the GPUs they hold: `gateway_gpu_lease`.",
        links={"worker": "vllm-gateway-workers"},
        no_value="none held",
        width=8,
    ),
    lines(
        "Memory used by GPU",
        [Query(ratio(GPUS.highest(USED, EACH), GPUS.highest(TOTAL, EACH)), "{{instance}} {{gpu}}")],
        "percentunit",
        "vLLM takes what `gpu_memory_utilization` says at the start, so this is high and flat by design: "
        "`gateway_gpu_memory_used_bytes`, `gateway_gpu_memory_total_bytes`.",
        at_most=1,
        no_value=NO_GPU,
    ),
    lines(
        "Busy by GPU",
        [Query(GPUS.highest(BUSY, EACH), "{{instance}} {{gpu}}")],
        "percentunit",
        "Share of time in which some kernel ran: `gateway_gpu_utilization_ratio`.",
        at_most=1,
        no_value=NO_GPU,
    ),
    lines(
        "Temperature by GPU",
        [Query(GPUS.highest(HEAT, EACH), "{{instance}} {{gpu}}")],
        "celsius",
        "Of the core: `gateway_gpu_temperature_celsius`.",
        judged=HEAT_JUDGED,
        no_value=NO_GPU,
    ),
    lines(
        "Power by GPU",
        [Query(GPUS.highest(POWER, EACH), "{{instance}} {{gpu}}")],
        "watt",
        "Drawn: `gateway_gpu_power_watts`.",
        stacked=True,
        no_value=NO_GPU,
    ),
    lines(
        "Power by worker",
        [
            Query(
                "sum by (model, worker) ("
                f"{GPUS.highest(LEASE, ('instance', 'gpu', 'model', 'worker'))} "
                f"* on (instance, gpu) group_left () {GPUS.highest(POWER, EACH)})",
                "{{worker}}",
            )
        ],
        "watt",
        "Of the GPUs a worker holds; where several share one, each is given the whole of it: "
        "`gateway_gpu_power_watts`, `gateway_gpu_lease`.",
        no_value="none held",
    ),
    lines(
        "Output tokens per joule",
        [
            Query(
                ratio(SITE.rate("gateway_output_tokens_total"), GPUS.total(POWER)),
                "tokens per joule",
            )
        ],
        "short",
        "Generated tokens per second by the power of the shown GPUs: `gateway_output_tokens_total`, "
        "`gateway_gpu_power_watts`.",
        no_value=NO_GPU,
    ),
]

HOST: list[PanelBuilder] = [
    lines(
        "Processor time of the workers' API servers",
        [Query(PROCESSES.rate("process_cpu_seconds_total", ("worker",)), "{{worker}}")],
        "percentunit",
        "Share of one processor; near 1 the process holds up tokens: `process_cpu_seconds_total`.",
        no_value="no workers",
    ),
    lines(
        "Memory of the workers' API servers",
        [Query(PROCESSES.highest("process_resident_memory_bytes", ("worker",)), "{{worker}}")],
        "bytes",
        "Resident memory, the engine's own processes not included: `process_resident_memory_bytes`.",
        no_value="no workers",
    ),
    lines(
        "Open files of the workers' API servers",
        [
            Query(
                ratio(
                    PROCESSES.highest("process_open_fds", ("worker",)),
                    PROCESSES.highest("process_max_fds", ("worker",)),
                ),
                "{{worker}}",
            )
        ],
        "percentunit",
        "Share of the limit in use; every stream takes a connection: `process_open_fds`, `process_max_fds`.",
        judged=Judged(warn=0.7, bad=0.9),
        no_value="no workers",
    ),
]

PAGE = Page(
    uid="vllm-gateway-gpu",
    title="GPU and host",
    description="GPUs as the supervisor reads them from the driver, who holds them, and the workers' processes.",
    sections=(Section("", TILES), Section("GPUs", DEVICES), Section("Processes", HOST)),
    variables=(JOB, INSTANCE, GPU),
    markers=worker_markers(SITE),
)
