"""What the simulated worker was asked to be: vLLM's own flags where they matter, and `--sim-*` flags for the rest."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.servers.simulation.startup import FAILURES

REMOVED_FLAGS = frozenset(
    {"--swap-space", "--disable-log-requests", "--task", "--num-scheduler-steps", "--rope-scaling"}
)
"""Flags that vLLM 0.32 refuses with exit code 2, so that a supervisor's handling of it can be tried."""


@dataclass(frozen=True, slots=True)
class Exit:
    """Leave with this code, by itself, after so many seconds or accepted generation requests."""

    code: int
    after: float


@dataclass(frozen=True, slots=True)
class SimulatorOptions:
    """Everything the simulator can be told. Times in the unit of their name."""

    model: str = "sim"
    names: tuple[str, ...] = ("sim",)
    host: str = "127.0.0.1"
    port: int = 0
    uds: str | None = None
    api_keys: tuple[str, ...] = ()
    max_model_len: int = 8192
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_num_queued_reqs: int | None = None
    shutdown_timeout_s: float = 0.0
    keep_alive_s: float = 5.0
    prefix_caching: bool = True
    prompt_tokens_details: bool = False
    request_id_headers: bool = False
    force_include_usage: bool = False
    pooling: bool = False
    survive_engine_death: bool = False
    start_s: float = 2.0
    teardown_s: float = 0.3
    itl_ms: float = 8.0
    itl_ms_per_seq: float = 0.05
    prefill_ms_per_token: float = 0.02
    kv_tokens: int = 200_000
    orphan_s: float = 600.0
    hang_after: int | None = None
    exit_after_s: Exit | None = None
    exit_after_requests: Exit | None = None
    ignore_term: bool = False
    fail_start: str | None = None
    fail_times: int | None = None
    counter_file: str | None = None
    engine_process: bool = True

    @property
    def address(self) -> str:
        """Where it serves, for the log; the port may still be 0."""
        return f"unix:{self.uds}" if self.uds else f"http://{self.host}:{self.port}"


def _exit(text: str) -> Exit:
    code, _, after = text.partition(":")
    try:
        return Exit(int(code), float(after))
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected CODE:AFTER, e.g. 1:2.5, found {text!r}") from None


def build_parser() -> argparse.ArgumentParser:
    """The argument parser; unknown flags without the `--sim-` prefix are accepted, as any vLLM flag might come."""
    parser = argparse.ArgumentParser(prog="api_server.py", allow_abbrev=False, description="A vLLM worker, simulated.")
    parser.add_argument("--model", default="sim")
    parser.add_argument("--served-model-name", nargs="+")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--uds")
    parser.add_argument("--api-key", nargs="+", default=[])
    parser.add_argument("--max-model-len", type=int, default=8192)
    parser.add_argument("--max-num-seqs", type=int, default=256)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--max-num-queued-reqs", type=int)
    parser.add_argument("--shutdown-timeout", type=float, default=0.0)
    parser.add_argument("--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    parser.add_argument("--enable-request-id-headers", action="store_true")
    parser.add_argument("--enable-force-include-usage", action="store_true")
    parser.add_argument("--runner", choices=("auto", "generate", "pooling", "draft"), default="auto")
    sim = parser.add_argument_group("simulation")
    sim.add_argument("--sim-start-s", type=float, help="seconds from launch to ready (default: $SIM_START_S or 2)")
    sim.add_argument("--sim-teardown-s", type=float, default=0.3, help="seconds from the end of work to exit")
    sim.add_argument("--sim-itl-ms", type=float, default=8.0, help="time of one engine step")
    sim.add_argument("--sim-itl-ms-per-seq", type=float, default=0.05, help="added to a step per running sequence")
    sim.add_argument("--sim-prefill-ms-per-token", type=float, default=0.02, help="added to a step per prompt token")
    sim.add_argument("--sim-kv-tokens", type=int, default=200_000, help="size of the KV cache")
    sim.add_argument("--sim-orphan-s", type=float, default=600.0, help="life of EngineCore without its parent")
    sim.add_argument("--sim-hang-after", type=int, metavar="N", help="the engine stops stepping at request N+1")
    sim.add_argument("--sim-exit-code-after", type=_exit, metavar="CODE:SECONDS", help="exit so long after ready")
    sim.add_argument("--sim-exit-after-requests", type=_exit, metavar="CODE:N", help="exit at request N+1")
    sim.add_argument("--sim-ignore-term", action="store_true", help="SIGTERM does nothing")
    sim.add_argument("--sim-fail-start", choices=sorted(FAILURES), metavar="CLASS", help=", ".join(sorted(FAILURES)))
    sim.add_argument("--sim-fail-times", type=int, metavar="N", help="fail only the first N starts (needs a counter)")
    sim.add_argument("--sim-counter", metavar="FILE", help="counts starts over processes")
    sim.add_argument("--sim-no-engine-process", action="store_true", help="no EngineCore child process")
    return parser


def parse_options(argv: Sequence[str], environ: Mapping[str, str]) -> SimulatorOptions:
    """
    Reads a vLLM command line.

    Raises:
        SystemExit: with code 2, after argparse's message, for flags that vLLM or the simulation does not know.
    """
    parser = build_parser()
    known, unknown = parser.parse_known_args(argv)
    refused = [flag for flag in unknown if flag.split("=")[0] in REMOVED_FLAGS or flag.startswith("--sim-")]
    if refused:
        parser.error("unrecognized arguments: " + " ".join(refused))
    keys = known.api_key or ([environ["VLLM_API_KEY"]] if environ.get("VLLM_API_KEY") else [])
    start_s = known.sim_start_s if known.sim_start_s is not None else float(environ.get("SIM_START_S", "2"))
    return SimulatorOptions(
        model=known.model,
        names=tuple(known.served_model_name or [known.model]),
        host=known.host,
        port=known.port,
        uds=known.uds,
        api_keys=tuple(keys),
        max_model_len=known.max_model_len,
        max_num_seqs=known.max_num_seqs,
        max_num_batched_tokens=known.max_num_batched_tokens,
        max_num_queued_reqs=known.max_num_queued_reqs,
        shutdown_timeout_s=known.shutdown_timeout,
        keep_alive_s=float(environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5")),
        prefix_caching=known.enable_prefix_caching,
        prompt_tokens_details=known.enable_prompt_tokens_details,
        request_id_headers=known.enable_request_id_headers,
        force_include_usage=known.enable_force_include_usage,
        pooling=known.runner == "pooling",
        survive_engine_death=environ.get("VLLM_KEEP_ALIVE_ON_ENGINE_DEATH", "0") == "1",
        start_s=start_s,
        teardown_s=known.sim_teardown_s,
        itl_ms=known.sim_itl_ms,
        itl_ms_per_seq=known.sim_itl_ms_per_seq,
        prefill_ms_per_token=known.sim_prefill_ms_per_token,
        kv_tokens=known.sim_kv_tokens,
        orphan_s=known.sim_orphan_s,
        hang_after=known.sim_hang_after,
        exit_after_s=known.sim_exit_code_after,
        exit_after_requests=known.sim_exit_after_requests,
        ignore_term=known.sim_ignore_term,
        fail_start=known.sim_fail_start,
        fail_times=known.sim_fail_times,
        counter_file=known.sim_counter,
        engine_process=not known.sim_no_engine_process,
    )
