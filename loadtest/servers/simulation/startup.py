"""
The log of a vLLM start, line by line with the moment each appears, and the recorded logs of starts that fail.

Lines carry the texts a supervisor looks for (phases and failure classes of vLLM 0.32); the rest is shortened.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Stream = Literal["out", "err"]
Process = Literal["APIServer", "EngineCore", "Worker_TP0"]


STAMP = "11-28 21:34:49"
"""Stands for the time of the line; whoever writes it puts the real one there."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line; `at` is the fraction of the whole start, `process` the prefix vLLM puts before it."""

    at: float
    text: str
    process: Process = "APIServer"
    stream: Stream = "out"


def startup_lines(model: str, served: str, address: str, kv_tokens: int, max_model_len: int, pid: int) -> list[LogLine]:
    """The phases of a successful start, in order."""
    info = f"INFO {STAMP}"
    concurrency = kv_tokens / max_model_len
    core: Process = "EngineCore"
    return [
        LogLine(
            0.15, f"{info} [utils.py:253] non-default args: {{'model': '{model}', 'served_model_name': ['{served}']}}"
        ),
        LogLine(0.20, f"{info} [model.py:514] Resolved architecture: LlamaForCausalLM"),
        LogLine(0.30, f"{info} [core.py:97] Initializing a V1 LLM engine (v0.32.0) with config: model='{model}'", core),
        LogLine(0.40, f"{info} [parallel_state.py:1203] world_size=1 rank=0 local_rank=0 backend=gloo", core),
        LogLine(0.45, f"{info} [model_runner.py:3550] Starting to load model {model}...", core),
        LogLine(0.50, "Loading safetensors checkpoint shards:   0% Completed | 0/2 [00:00<?, ?it/s]\r", core, "err"),
        LogLine(0.55, "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00]\r", core, "err"),
        LogLine(0.60, "Loading safetensors checkpoint shards: 100% Completed | 2/2 [00:00<00:00]", core, "err"),
        LogLine(0.62, f"{info} [default_loader.py:308] Loading weights took 0.21 seconds", core),
        LogLine(0.64, f"{info} [model_runner.py:3600] Model loading took 0.25 GiB and 0.4 seconds", core),
        LogLine(0.75, f"{info} [worker.py:298] Available KV cache memory: 1.00 GiB", core),
        LogLine(
            0.78,
            f"{info} [kv_cache_utils.py:1087] CPU KV cache size: {kv_tokens:,} tokens, Maximum concurrency for "
            f"{max_model_len:,} tokens per request: {concurrency:.2f}x",
            core,
        ),
        LogLine(
            0.90,
            f"{info} [core.py:248] init engine (profile, create kv cache, warmup model) took 0.50 seconds",
            core,
        ),
        LogLine(0.95, f"{info} [api_server.py:1725] Supported tasks: ['generate']"),
        LogLine(0.97, f"{info} [api_server.py:2052] Starting vLLM server on {address}"),
        LogLine(0.98, f"INFO:     Started server process [{pid}]", stream="err"),
        LogLine(0.99, "INFO:     Waiting for application startup.", stream="err"),
        LogLine(1.00, "INFO:     Application startup complete.", stream="err"),
    ]


@dataclass(frozen=True, slots=True)
class StartFailure:
    """How a start fails: after this fraction of it, with these lines and this exit code; None: it hangs for ever."""

    at: float
    lines: tuple[str, ...]
    code: int | None = 1
    process: Process = "EngineCore"


_ENGINE_TAIL = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"
)


def _engine(at: float, error: str) -> StartFailure:
    return StartFailure(
        at, (f"ERROR {STAMP} [core.py:900] EngineCore failed to start.", f"ERROR {STAMP} [core.py:900] {error}")
    )


FAILURES: Mapping[str, StartFailure] = {
    "port-in-use": StartFailure(0.18, ("OSError: [Errno 98] Address already in use",), process="APIServer"),
    "internal-port": _engine(
        0.40, "torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE"
    ),
    "bad-model": StartFailure(
        0.2,
        ("huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name'",),
        process="APIServer",
    ),
    "offline": StartFailure(0.2, ("OSError: We couldn't connect to 'https://huggingface.co'",), process="APIServer"),
    "no-weights": _engine(0.5, "RuntimeError: Cannot find any model weights with `sim`"),
    "tp-heads": StartFailure(
        0.25,
        ("ValueError: Total number of attention heads (4) must be divisible by tensor parallel size (3).",),
        process="APIServer",
    ),
    "tp-gpus": StartFailure(
        0.25,
        ("ValueError: World size (4) is larger than the number of available GPUs (1) in this node.",),
        process="APIServer",
    ),
    "context-too-long": StartFailure(
        0.25,
        (
            "ValueError: User-specified max_model_len (99999) is greater than the derived max_model_len "
            "(max_position_embeddings=8192)",
        ),
        process="APIServer",
    ),
    "kv-memory": _engine(
        0.78,
        "ValueError: To serve at least one request with the model's max seq len (8192), 2.00 GiB KV cache is needed, "
        "which is larger than the available KV cache memory (1.00 GiB). Based on the available memory, the estimated "
        "maximum model length is 4096.",
    ),
    "no-cache-blocks": _engine(0.78, "ValueError: No available memory for the cache blocks."),
    "gpu-memory-busy": _engine(
        0.40,
        "ValueError: Free memory on device cuda:0 (3.1/139.8 GiB) on startup is less than desired GPU memory "
        "utilization (0.9, 125.8 GiB).",
    ),
    "cpu-ram": _engine(
        0.40, "ValueError: Free memory (2.1/15.6 GiB) is less than desired CPU memory utilization (0.92)."
    ),
    "cuda-oom": _engine(0.60, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."),
    "quantization": StartFailure(
        0.25,
        ("ValueError: torch.float32 is not supported for quantization method awq.",),
        process="APIServer",
    ),
    "sleep-mode": StartFailure(
        0.25,
        ("ValueError: Sleep mode is not supported on current platform.",),
        process="APIServer",
    ),
    "numa": _engine(0.45, "AssertionError: Not enough allowed NUMA nodes to bind threads of 2 CPUWorkers."),
    "bad-flag": StartFailure(
        0.15,
        (
            "usage: api_server.py [-h] [--model MODEL]",
            "api_server.py: error: unrecognized arguments: --swap-space",
        ),
        code=2,
        process="APIServer",
    ),
    "hang": StartFailure(0.45, (), code=None),
}
"""Failure classes by name; see the table of start-up failures in the worker notes for what each calls for."""


def failure_lines(failure: StartFailure) -> list[LogLine]:
    """The lines of a failed start, with the generic tail vLLM adds when its engine process was the one that failed."""
    lines = [LogLine(failure.at, text, failure.process, "err") for text in failure.lines]
    if failure.process == "EngineCore" and failure.code is not None:
        lines.append(LogLine(failure.at, _ENGINE_TAIL, "APIServer", "err"))
    return lines
