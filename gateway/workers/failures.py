"""
Why a worker did not start, in one sentence that names the key to change: a pure reading of its last lines.

vLLM ends most failed starts with "Engine core initialization failed. See root cause above", which is not the cause. The
cause is the first error that a process below the API server logged, or else the last exception of the output.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.workers.services import EXIT_UNKNOWN


@dataclass(frozen=True, slots=True)
class StartFailure:
    """
    One failed start.

    `reason` is a closed set of words (a metric label). `sentence` ends in the key or command that mends it. `permanent`
    means that trying again without a change cannot succeed. `root_cause` is the line of the log it was read from.
    """

    reason: str
    sentence: str
    permanent: bool
    root_cause: str = ""


@dataclass(frozen=True, slots=True)
class _Rule:
    """`sentence` may use the groups of `pattern`, `{model}` (public name) and `{source}`."""

    reason: str
    pattern: re.Pattern[str]
    sentence: str
    permanent: bool


def _rule(reason: str, pattern: str, sentence: str, *, permanent: bool) -> _Rule:
    return _Rule(reason, re.compile(pattern), sentence, permanent)


# The first rule that matches wins, so the specific stand before the general.
_RULES = (
    _rule(
        "port_in_use",
        r"OSError: \[Errno 98\] Address already in use|error while attempting to bind on address .*in use",
        "The port chosen for the worker was taken meanwhile; it is started again on another one.",
        permanent=False,
    ),
    _rule(
        "internal_port",
        r"EADDRINUSE|DistNetworkError",
        "Two processes of vLLM wanted the same internal port; it is started again.",
        permanent=False,
    ),
    _rule(
        "bad_flag",
        r"error: unrecognized arguments: (?P<what>.+)",
        "This engine does not know the option {what}; correct models.{model}.launch.extra_args (or the launch key that "
        "sets it), or use another engine version.",
        permanent=True,
    ),
    _rule(
        "bad_flag",
        r"error: (?P<what>argument .+)",
        "The engine refuses an option: {what}; correct it under models.{model}.launch.",
        permanent=True,
    ),
    _rule(
        "no_engine",
        r"(?P<what>No module named '?vllm\b[^\s']*'?|Error while finding module specification for '(?:vllm)[^']*')",
        "The engine's interpreter has no vLLM ({what}); set engines.NAME.python to an environment that has it, or "
        "unset it and run `gateway doctor`.",
        permanent=True,
    ),
    _rule(
        "gated_model",
        r"(?:GatedRepoError|is a gated repo|401 Client Error|403 Client Error|Access to model .* is restricted)",
        "The hub refuses access to {source}; accept its licence there and set HF_TOKEN, or give another "
        "models.{model}.model.",
        permanent=True,
    ),
    _rule(
        "no_network",
        r"We couldn't connect to|LocalEntryNotFoundError|outgoing traffic has been disabled|OfflineModeIsEnabled"
        r"|Failed to resolve '[^']*huggingface",
        "{source} is neither a folder nor in the hub cache, and the hub cannot be reached; download it first, set "
        "HF_ENDPOINT or a proxy, or give models.{model}.model a folder.",
        permanent=False,
    ),
    _rule(
        "no_model",
        r"Repo id must be in the form|Repository Not Found|RepositoryNotFoundError|404 Client Error"
        r"|is not a local folder and is not a valid model identifier|Invalid repository ID or local directory",
        "There is no model {source}: no such folder and no such name on the hub; correct models.{model}.model.",
        permanent=True,
    ),
    _rule(
        "bad_model",
        r"config file at '?[^']*'? is not a valid JSON file",
        "The config.json of {source} is not valid JSON: its download was not complete, or it was edited; mend it, or "
        "give another models.{model}.model.",
        permanent=True,
    ),
    _rule(
        "no_weights",
        r"Cannot find any model weights with",
        "The folder {source} has no weight files; complete the download, or set models.{model}.launch.load_format.",
        permanent=True,
    ),
    _rule(
        "unsupported_model",
        r"(?P<what>Model architectures \[[^\]]*\] (?:are not supported|failed to be inspected))",
        "This engine cannot run {source} ({what}); use another model or a newer engine.",
        permanent=True,
    ),
    _rule(
        "remote_code",
        r"contains custom code which must be executed|set the option `trust_remote_code=True`",
        "{source} brings its own code; read it, then set models.{model}.launch.trust_remote_code: true.",
        permanent=True,
    ),
    _rule(
        "tensor_parallel",
        r"attention heads \((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<size>\d+)\)",
        "tensor_parallel_size {size} does not divide the model's {heads} attention heads; change "
        "models.{model}.launch.tensor_parallel_size.",
        permanent=True,
    ),
    _rule(
        "too_few_gpus",
        r"World size \((?P<size>\d+)\) is larger than the number of available GPUs \(?(?P<count>\d+)?",
        "The worker wants {size} GPUs, more than it was given; lower models.{model}.launch.tensor_parallel_size.",
        permanent=True,
    ),
    _rule(
        "context_too_long",
        r"max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len \([^\d]*(?P<limit>\d+)",
        "max_model_len {asked} is more than the model's own {limit}; lower models.{model}.launch.max_model_len.",
        permanent=True,
    ),
    _rule(
        "kv_cache",
        r"estimated maximum model length is (?P<length>\d+)",
        "The KV cache does not hold one request of full length; lower models.{model}.launch.max_model_len to {length} "
        "or less, or give it more memory (gpu_memory_utilization, kv_cache_memory_bytes, cpu_kv_cache_gib).",
        permanent=True,
    ),
    _rule(
        "kv_cache",
        r"No available memory for the cache blocks|To serve at least one request with the model's max seq len",
        "No memory is left for the KV cache; raise models.{model}.launch.gpu_memory_utilization (or cpu_kv_cache_gib), "
        "or lower max_model_len.",
        permanent=True,
    ),
    _rule(
        "gpu_busy",
        r"Free memory on device (?P<device>\S+)? ?\((?P<free>[\d.]+)/[\d.]+ GiB\) on startup is less than desired",
        "Only {free} GiB of the GPU's memory are free: another process holds the rest (see nvidia-smi); end it, or "
        "lower models.{model}.launch.gpu_memory_utilization.",
        permanent=False,
    ),
    _rule(
        "cpu_memory",
        r"is less than desired CPU memory utilization",
        "Too little memory is free; lower models.{model}.launch.cpu_kv_cache_gib or end other programs.",
        permanent=False,
    ),
    _rule(
        "gpu_fault",
        r"(?P<what>CUDA error: (?!out of memory)[^;]+|NCCL error[^;]*|uncorrectable ECC error|Xid \(?\S+)",
        "The GPU or its driver failed ({what}); see `dmesg` and nvidia-smi.",
        permanent=False,
    ),
    _rule(
        "out_of_gpu_memory",
        r"OutOfMemoryError|CUDA out of memory",
        "The GPU ran out of memory; lower models.{model}.launch.gpu_memory_utilization or max_num_seqs.",
        permanent=False,
    ),
    _rule(
        "out_of_memory",
        r"\bMemoryError\b|Cannot allocate memory|DefaultCPUAllocator: can't allocate memory",
        "The machine ran out of memory; lower models.{model}.replicas or launch.cpu_kv_cache_gib.",
        permanent=False,
    ),
    _rule(
        "disk_full",
        r"No space left on device",
        "The disk (or /dev/shm) is full; free some space, `df -h` shows where.",
        permanent=False,
    ),
    _rule(
        "quantization",
        r"(?P<what>\S+ is not supported for quantization method \S+|Cannot find the config file for \w+)",
        "{what}; change models.{model}.launch.dtype or quantization.",
        permanent=True,
    ),
    _rule(
        "unsupported_feature",
        r"(?P<what>[A-Z][\w ]* is not supported on current platform)",
        "{what}; remove the option from models.{model}.launch.extra_args.",
        permanent=True,
    ),
    _rule(
        "cpu_binding",
        r"Not enough allowed NUMA nodes to bind threads",
        "vLLM cannot bind its threads here; set models.{model}.launch.env.VLLM_CPU_OMP_THREADS_BIND to nobind.",
        permanent=True,
    ),
    _rule(
        "bad_option",
        r"Value error, (?P<what>.+?) \[type=value_error",
        "The engine refuses its configuration: {what}; correct models.{model}.launch.",
        permanent=True,
    ),
)  # fmt: skip

BAD_FLAG = "bad_flag"
MAYBE_THE_GPU = frozenset(
    {"start_failed", "start_timeout", "gpu_fault", "out_of_gpu_memory", "gpu_busy", "warm_up", "exited", "hung"}
)
"""Reasons of a failed start that may lie in the GPU; all others lie in the configuration, the model or the machine."""

_AT_RUN_TIME = frozenset({"gpu_fault", "out_of_gpu_memory", "out_of_memory", "disk_full"})
"""What may also happen to a worker that served; these sentences use `{model}` and the rule's own groups alone."""

_NO_BROADCAST = re.compile(r"No available shared memory broadcast block")
_GENERIC = re.compile(r"Engine core initialization failed")
_ERROR = re.compile(r"(?:^|\s)(?P<error>[A-Za-z_][\w.]*(?:Error|Exception|Interrupt|NotFound)\b:? .*|Value error, .*)$")
_FROM_BELOW = re.compile(r"\((?:EngineCore|Worker)[^)]*\) ERROR")


def classify_start_failure(
    lines: Sequence[str], *, model: str, source: str, exit_status: int | None, timed_out_s: float | None = None
) -> StartFailure:
    """
    Why a start failed.

    Args:
        lines: The last lines of the worker's output, oldest first.
        model: The public name, for the key in the sentence.
        source: What vLLM was told to load.
        exit_status: As waited for (negative: signal); None when the process still ran.
        timed_out_s: The limit that passed, when it was we who ended the start.
    """
    for rule in _RULES:
        for line in lines:
            match = rule.pattern.search(line)
            if match:
                words = {name: (value or "").strip().rstrip(".") for name, value in match.groupdict().items()}
                sentence = rule.sentence.format(model=model, source=source, **words)
                return StartFailure(rule.reason, sentence, rule.permanent, line.strip())
    cause = root_cause(lines)
    if timed_out_s is not None:
        return StartFailure(
            "start_timeout",
            f"The worker was not ready after {timed_out_s:.0f} s{_waited_for(lines)}; raise "
            f"models.{model}.launch.start_timeout_s, or see its log for what it waits for.",
            False,
            lines[-1].strip() if lines else "",
        )
    if exit_status is not None and -exit_status == 9:
        return StartFailure(
            "killed",
            "The worker was killed (signal 9) while it started, mostly for want of memory (see dmesg); lower "
            f"models.{model}.replicas or launch.cpu_kv_cache_gib, or raise the container's memory limit.",
            False,
            cause,
        )
    how = "" if exit_status is None else f" ({describe_exit(exit_status)})"
    return StartFailure("start_failed", f"The worker ended while it started{how}: {_unended(cause)}.", False, cause)


def classify_crash(lines: Sequence[str], *, model: str, exit_status: int | None) -> StartFailure:
    """
    Why a serving worker exited without being asked to; always worth another start.

    Status 0 is no excuse: vLLM ends with it when its engine has died.
    """
    for rule in _RULES:
        if rule.reason not in _AT_RUN_TIME:
            continue
        for line in lines:
            if match := rule.pattern.search(line):
                sentence = rule.sentence.format(model=model, **match.groupdict())
                return StartFailure(rule.reason, sentence, False, line.strip())
    how = "ended" if exit_status is None else describe_exit(exit_status)
    cause = root_cause(lines)
    return StartFailure("exited", f"The worker exited while it served ({how}): {_unended(cause)}.", False, cause)


def _waited_for(lines: Sequence[str]) -> str:
    """What a start that hangs is known to wait for, to follow the time."""
    if any(_NO_BROADCAST.search(line) for line in lines):
        return (
            ': its processes wait for each other (where GPUs have no NVLink, launch.env.NCCL_P2P_DISABLE: "1" or '
            "--disable-custom-all-reduce in extra_args helps)"
        )
    return ""


def root_cause(lines: Sequence[str]) -> str:
    """The line that tells why: the first error logged below the API server, else the last real exception; or ""."""
    below = ""
    last = ""
    for line in lines:
        if _GENERIC.search(line):
            continue
        match = _ERROR.search(line)
        if not match:
            continue
        last = match["error"].strip()
        if not below and _FROM_BELOW.search(line):
            below = last
    return below or last


def _unended(cause: str) -> str:
    """To stand at the end of a sentence that has its own full stop."""
    return cause.rstrip(". ") or "no error logged"


def describe_exit(status: int) -> str:
    """`exit status 0`, `killed by signal 9`."""
    if status == EXIT_UNKNOWN:
        return "exit status unknown: an earlier supervisor was its parent"
    return f"killed by signal {-status}" if status < 0 else f"exit status {status}"
