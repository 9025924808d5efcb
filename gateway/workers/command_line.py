"""
From a worker's specification to the command that starts it: a pure function.

Core flags, unchanged since vLLM 0.12, are given by name, a few optional ones only to engines that know them; everything
else is the operator's, through `extra_args`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from gateway.types import WorkerAddress
from gateway.workers.spec import WorkerSpec

PASSED_THROUGH = frozenset(
    {
        "PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LANGUAGE", "TZ", "TMPDIR", "TERM",
        "LD_LIBRARY_PATH", "LD_PRELOAD", "LIBRARY_PATH", "CPATH", "C_INCLUDE_PATH", "CC", "CXX",
        "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy",
        "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
        "CUDA_HOME", "CUDA_PATH", "CUDA_MODULE_LOADING", "CUDA_CACHE_PATH",
        "NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES",
        "TORCH_HOME", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR", "TRITON_PTXAS_PATH",
        "OMP_NUM_THREADS", "MKL_NUM_THREADS",
        "VLLM_CACHE_ROOT", "VLLM_CONFIG_ROOT", "VLLM_LOGGING_LEVEL", "VLLM_USE_MODELSCOPE",
    }
)  # fmt: skip
"""Variables of the supervisor's environment that a worker gets."""

PASSED_PREFIXES = ("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "XDG_", "LC_", "OPENBLAS_", "NCCL_")
"""
... and those that begin so.

Everything else stays behind, above all VLLM_PORT, which Kubernetes sets to an URL for every Service called "vllm" and
which then crashes the worker, the rank variables of an outer launcher (RANK, WORLD_SIZE, MASTER_ADDR ...), which make
vLLM join a group that does not exist, and VLLM_SERVER_DEV_MODE, which opens operator routes. `launch.env` is the place
for what a worker needs besides.
"""

OPTIONAL_FLAGS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "--enable-request-id-headers": (),
        # Probes come every few seconds and would fill the log.
        "--disable-access-log-for-endpoints": ("/health,/metrics",),
    }
)
"""Useful but dispensable flags with their values: given only to an engine that knows them (`capabilities`)."""

_NO_PROXY = ("no_proxy", "NO_PROXY")
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True)
class CommandLine:
    """
    Argument list and complete environment of a worker; the environment holds its key, so it is never printed.

    What a launch record needs besides: `launch_id` (as in the worker's status), `address`, `gpus`, `fingerprint` (what
    the configuration asks, as a digest) and `scratch_dir` (the launch's own TMPDIR).
    """

    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
    launch_id: str = ""
    address: WorkerAddress | None = None
    gpus: tuple[int, ...] = ()
    fingerprint: str = ""
    scratch_dir: Path | None = None


def command_line(
    spec: WorkerSpec,
    address: WorkerAddress,
    environ: Mapping[str, str],
    *,
    known_flags: frozenset[str] = frozenset(),
    launch_id: str = "",
    scratch_dir: Path | None = None,
    memory_share: float | None = None,
) -> CommandLine:
    """
    The command of one launch.

    Args:
        address: Where the worker shall listen (loopback port or Unix socket).
        environ: The supervisor's own environment.
        known_flags: Those of OPTIONAL_FLAGS that this engine knows.
        scratch_dir: The launch's own TMPDIR; what the engine leaves there goes with it.
        memory_share: What this launch may take of a GPU's memory. vLLM wants its default of 0.92 free at the start even
            where the KV cache has an exact size and the fraction decides nothing else; beside another worker on the
            same GPU it would never start.
    """
    environment = _environment(spec, environ)
    if scratch_dir is not None and "TMPDIR" not in spec.launch.env:
        environment["TMPDIR"] = str(scratch_dir)
        kernels = _kernel_cache(environ)
        if kernels:
            # PyTorch keeps compiled kernels below TMPDIR; lost with it, every start would compile them again.
            environment.setdefault("TORCHINDUCTOR_CACHE_DIR", kernels)
    return CommandLine(
        argv=_argv(spec, address, known_flags, memory_share),
        environ=environment,
        launch_id=launch_id,
        address=address,
        gpus=spec.gpus,
        fingerprint=fingerprint(spec),
        scratch_dir=scratch_dir,
    )


def fingerprint(spec: WorkerSpec) -> str:
    """
    What the configuration asks of a launch, as a digest: equal if and only if a running worker need not be replaced.

    Address, key, GPUs (a listed choice excepted) and optional flags are left out: they differ between launches of the
    same configuration, or with what was found out about the engine meanwhile.
    """
    parts = [
        _argv(spec, WorkerAddress(), frozenset()),
        sorted(spec.launch.env.items()),
        str(spec.engine_python),
        spec.variant,
        spec.launch.gpus,
        spec.mig_device,
        spec.launch.transport,
        spec.cpus,
        spec.launch.cpu_kv_cache_gib if spec.variant == "cpu" else None,
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def _argv(
    spec: WorkerSpec, address: WorkerAddress, known_flags: frozenset[str], memory_share: float | None = None
) -> tuple[str, ...]:
    launch = spec.launch
    utilization = launch.gpu_memory_utilization
    if utilization is None and memory_share is not None:
        utilization = max(0.01, int(memory_share * 1000) / 1000)
    argv = [
        part.replace("{python}", str(spec.engine_python)).replace("{model}", spec.source)
        for part in spec.engine_command
    ]
    if not any("{model}" in part for part in spec.engine_command):
        argv += ["--model", spec.source]
    argv += ["--served-model-name", spec.model]
    argv += ["--uds", address.uds] if address.uds else ["--host", address.host, "--port", str(address.port)]

    options: list[tuple[str, object]] = [
        ("--tensor-parallel-size", launch.tensor_parallel_size if launch.tensor_parallel_size > 1 else None),
        ("--gpu-memory-utilization", utilization),
        ("--kv-cache-memory-bytes", launch.kv_cache_memory_bytes),
        ("--max-model-len", launch.max_model_len),
        ("--max-num-seqs", launch.max_num_seqs),
        ("--max-num-batched-tokens", launch.max_num_batched_tokens),
        ("--dtype", launch.dtype),
        ("--quantization", launch.quantization),
        ("--kv-cache-dtype", launch.kv_cache_dtype),
        ("--load-format", launch.load_format),
    ]
    for flag, value in options:
        if value is not None:
            argv += [flag, str(value)]
    # Compiling for a CPU costs half a minute at every cold start and needs a C++ compiler; ask for it explicitly.
    eager = launch.enforce_eager if launch.enforce_eager is not None else spec.variant == "cpu"
    switches = [
        ("enable-prefix-caching", launch.enable_prefix_caching),
        ("enforce-eager", True if eager else launch.enforce_eager),
        ("enable-lora", launch.enable_lora),
    ]
    for name, wanted in switches:
        if wanted is not None:
            argv.append(f"--{name}" if wanted else f"--no-{name}")
    if launch.trust_remote_code:
        argv.append("--trust-remote-code")
    if launch.lora_modules:
        argv += ["--lora-modules", *(f"{name}={source}" for name, source in launch.lora_modules.items())]
    if launch.speculative_config is not None:
        argv += ["--speculative-config", json.dumps(launch.speculative_config)]
    argv.append("--enable-prompt-tokens-details")
    given = {argument.partition("=")[0] for argument in launch.extra_args}
    for flag, values in OPTIONAL_FLAGS.items():
        if flag in known_flags and flag not in given:
            argv += [flag, *values]
    argv += launch.extra_args
    return tuple(argv)


def _environment(spec: WorkerSpec, inherited: Mapping[str, str]) -> dict[str, str]:
    environment = {name: value for name, value in inherited.items() if _passes(name)}
    environment |= {
        # Ends the race between the worker's five-second keep-alive and our pooled connections.
        "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120",
        "VLLM_NO_USAGE_STATS": "1",
        # Block hashes of older versions differ between workers without it.
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
    }
    if spec.variant == "cuda":
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        if spec.mig_device:
            environment["CUDA_VISIBLE_DEVICES"] = spec.mig_device
        elif spec.gpus:
            environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpus))
    else:
        if spec.launch.kv_cache_memory_bytes is None:
            # It would override --kv-cache-memory-bytes in silence.
            environment["VLLM_CPU_KVCACHE_SPACE"] = str(spec.launch.cpu_kv_cache_gib)
        if spec.cpus:
            environment["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, spec.cpus))
        elif spec.launch.tensor_parallel_size > 1:
            # vLLM's own binding wants one NUMA node per rank and refuses to start where there are fewer.
            environment |= {"VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    environment |= spec.launch.env
    exempt = _with_loopback(*(spec.launch.env.get(name, inherited.get(name, "")) for name in _NO_PROXY))
    environment |= dict.fromkeys(_NO_PROXY, exempt)
    if spec.api_key is not None:
        environment["VLLM_API_KEY"] = spec.api_key
    return environment


def _kernel_cache(inherited: Mapping[str, str]) -> str:
    """In the gateway's cache directory; "" where the environment names no place for one."""
    if own := inherited.get("GATEWAY_CACHE_DIR"):
        return f"{own}/torchinductor"
    caches = inherited.get("XDG_CACHE_HOME") or (f"{inherited['HOME']}/.cache" if inherited.get("HOME") else "")
    return f"{caches}/vllm-gateway/torchinductor" if caches else ""


def _passes(name: str) -> bool:
    return name in PASSED_THROUGH or name.startswith(PASSED_PREFIXES)


def _with_loopback(*lists: str) -> str:
    """One NO_PROXY value for both spellings (programs differ in which they read), with the loopback addresses."""
    listed = [host.strip() for hosts in lists for host in hosts.split(",") if host.strip()]
    return ",".join(dict.fromkeys([*listed, *_LOOPBACK]))
