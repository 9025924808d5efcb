"""
What is bound to fail, told before anything is started: vLLM would find out after half a minute, or on the GPU.

Pure: the model's files are read by `model_files`. Nothing is refused that vLLM might accept; where `extra_args` or the
environment change what a rule is about, the rule is silent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from gateway.errors import ConfigurationError
from gateway.workers.gpus import DEFAULT_SHARE, GIB, MOST_RESERVED
from gateway.workers.model_files import ModelFiles
from gateway.workers.placement import Gpu
from gateway.workers.sizes import parsed_bytes
from gateway.workers.spec import WorkerSpec

VOCABULARY_PADDING = 64
"""vLLM pads the vocabulary to a multiple of it before it is divided among the ranks."""

_HEADS = ("num_attention_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "n_head_kv", "num_kv_heads", "multi_query_group_num")
_LENGTHS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length",
    "max_seq_length", "seq_len", "max_target_positions",
)  # fmt: skip
_CONFIG_CHANGED = ("--hf-overrides", "--config-format", "--hf-config-path", "--config")
_SPREAD_ELSEWHERE = ("--pipeline-parallel-size", "-pp", "--cpu-offload-gb", "--enable-expert-parallel", "--nnodes")


@dataclass(frozen=True, slots=True)
class Resources:
    """What the workers may use together: GPUs by index, and the machine's (or the container's) memory in bytes."""

    gpus: Mapping[int, Gpu]
    memory_bytes: int | None = None


def check_fleet(
    specs: Sequence[WorkerSpec], files: Mapping[str, ModelFiles | None], resources: Resources
) -> tuple[ConfigurationError, ...]:
    """
    Everything that is bound to fail, each with its key.

    Args:
        files: By `source` of the specifications.
    """
    launched = [spec for spec in specs if spec.static is None]
    found: dict[str, ConfigurationError] = {}
    for spec in launched:
        for problem in check_launch(spec, files.get(spec.source), resources):
            found.setdefault(str(problem), problem)
    found |= {str(problem): problem for problem in _shared_gpus(launched, files, resources)}
    found |= {str(problem): problem for problem in _memory(launched, files, resources)}
    return tuple(found.values())


def check_launch(spec: WorkerSpec, files: ModelFiles | None, resources: Resources) -> tuple[ConfigurationError, ...]:
    """What is bound to fail about one worker by itself."""
    problems = list(_size_as_written(spec))
    if files is not None and not _given(spec, _CONFIG_CHANGED):
        problems += _division(spec, files)
        problems += _context(spec, files)
    if files is not None and not problems:
        problems += _weights(spec, files, resources)
    return tuple(problems)


def _division(spec: WorkerSpec, files: ModelFiles) -> list[ConfigurationError]:
    size = spec.launch.tensor_parallel_size
    if size == 1 or _given(spec, ("--tensor-parallel-size", "-tp")):
        return []
    key = f"models.{spec.model}.launch.tensor_parallel_size"
    config = files.text_config
    heads = _number(config, _HEADS)
    if heads and heads % size:
        return [ConfigurationError(f"{size} does not divide the model's {heads} attention heads", key=key)]
    kv_heads = _number(config, _KV_HEADS)
    # With multi-head latent attention every rank has the whole compressed cache, and the number means nothing.
    if kv_heads and "kv_lora_rank" not in config and (kv_heads % size if kv_heads >= size else size % kv_heads):
        return [
            ConfigurationError(
                f"the model's {kv_heads} key-value heads cannot be shared out to {size} GPUs: one number must divide "
                "the other",
                key=key,
            )
        ]
    vocabulary = _number(config, ("vocab_size",))
    if vocabulary:
        padded = -(-vocabulary // VOCABULARY_PADDING) * VOCABULARY_PADDING
        if padded % size:
            return [
                ConfigurationError(f"{size} does not divide the model's vocabulary of {padded} (padded) words", key=key)
            ]
    return []


def _context(spec: WorkerSpec, files: ModelFiles) -> list[ConfigurationError]:
    asked = spec.launch.max_model_len
    allowed_anyway = spec.launch.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("", "0")
    if asked is None or allowed_anyway or _given(spec, ("--max-model-len", "--rope-scaling")):
        return []
    limit = _longest_context(files)
    if limit is None or asked <= limit:
        return []
    return [
        ConfigurationError(
            f"{asked} is more than the model's own {limit}; lower it, or leave it out",
            key=f"models.{spec.model}.launch.max_model_len",
        )
    ]


def _longest_context(files: ModelFiles) -> int | None:
    """The longest the model may be meant for: of several statements the most generous, vLLM may read another."""
    config = files.text_config
    lengths = [value for name in _LENGTHS if isinstance(value := config.get(name), int)]
    if not lengths:
        return None
    factors = [1.0]
    for name in ("rope_scaling", "rope_parameters"):
        rope = config.get(name)
        for part in (rope, *(rope.values() if isinstance(rope, dict) else ())):
            factor = part.get("factor") if isinstance(part, dict) else None
            if isinstance(factor, int | float):
                factors.append(float(factor))
    return int(max(lengths) * max(factors))


def _weights(spec: WorkerSpec, files: ModelFiles, resources: Resources) -> list[ConfigurationError]:
    """Do the weights alone fit into what the worker reserves of its GPU?"""
    launch = spec.launch
    weights = _loaded_bytes(spec, files)
    if spec.variant != "cuda" or weights is None or launch.kv_cache_memory_bytes is not None:
        return []
    gpus = [resources.gpus[index] for index in spec.gpus if index in resources.gpus]
    smallest = min((gpu.total_bytes for gpu in gpus if gpu.total_bytes), default=0)
    share = DEFAULT_SHARE if launch.gpu_memory_utilization is None else launch.gpu_memory_utilization
    each = weights // launch.tensor_parallel_size
    if not smallest or each <= share * smallest:
        return []
    enough = [
        size
        for size in (2, 4, 8, 16)
        if weights // size <= share * smallest and not _division(_with_size(spec, size), files)
    ]
    advice = f"set it to {enough[0]}, or " if enough and enough[0] > launch.tensor_parallel_size else ""
    return [
        ConfigurationError(
            f"the weights take {each / GIB:.1f} GiB of each GPU, and a worker reserves {share * smallest / GIB:.1f} GiB"
            f" ({share:.2g} of it); {advice}raise gpu_memory_utilization, or take a smaller model",
            key=f"models.{spec.model}.launch.tensor_parallel_size",
        )
    ]


def _shared_gpus(
    specs: Sequence[WorkerSpec], files: Mapping[str, ModelFiles | None], resources: Resources
) -> list[ConfigurationError]:
    """Do the workers that were placed on one GPU reserve more than it has?"""
    problems = []
    for index, gpu in resources.gpus.items():
        here = [spec for spec in specs if spec.variant == "cuda" and index in spec.gpus]
        if len(here) < 2 or not gpu.total_bytes:
            continue
        shares = {spec.name: _share(spec, files.get(spec.source), gpu) for spec in here}
        total = sum(shares.values())
        if total > MOST_RESERVED + 1e-9:
            told = ", ".join(f"{name} {share:.0%}" for name, share in shares.items())
            problems.append(
                ConfigurationError(
                    f"the workers on GPU {index} reserve {total:.0%} of its memory together ({told}), "
                    f"{MOST_RESERVED:.0%} are possible; lower gpu_memory_utilization (or set kv_cache_memory_bytes), "
                    "or have fewer replicas",
                    key=f"models.{here[-1].model}.launch.gpu_memory_utilization",
                )
            )
    return problems


def _memory(
    specs: Sequence[WorkerSpec], files: Mapping[str, ModelFiles | None], resources: Resources
) -> list[ConfigurationError]:
    """Do weights and KV caches of the CPU workers fit into the machine's memory?"""
    if resources.memory_bytes is None:
        return []
    total = 0
    last = ""
    for spec in specs:
        model = files.get(spec.source)
        if spec.variant != "cpu" or model is None or _given(spec, ("--kv-cache-memory-bytes",)):
            continue
        cache = spec.launch.kv_cache_memory_bytes
        total += _loaded_bytes(spec, model) or 0
        total += spec.launch.cpu_kv_cache_gib * GIB if cache is None else parsed_bytes(cache)
        last = spec.model
    if total <= resources.memory_bytes:
        return []
    return [
        ConfigurationError(
            f"weights and KV caches of all workers take {total / GIB:.1f} GiB, this machine has "
            f"{resources.memory_bytes / GIB:.1f} GiB; have fewer replicas, or lower launch.cpu_kv_cache_gib",
            key=f"models.{last}.replicas",
        )
    ]


def _size_as_written(spec: WorkerSpec) -> list[ConfigurationError]:
    size = spec.launch.kv_cache_memory_bytes
    if size is None:
        return []
    try:
        parsed_bytes(size)
    except ValueError as exc:
        return [ConfigurationError(str(exc), key=f"models.{spec.model}.launch.kv_cache_memory_bytes")]
    return []


def _share(spec: WorkerSpec, files: ModelFiles | None, gpu: Gpu) -> float:
    launch = spec.launch
    if launch.kv_cache_memory_bytes is not None:
        try:
            cache = parsed_bytes(launch.kv_cache_memory_bytes)
        except ValueError:
            return 0.0
        weights = (_loaded_bytes(spec, files) or 0) // launch.tensor_parallel_size if files else 0
        return (cache + weights) / gpu.total_bytes
    return DEFAULT_SHARE if launch.gpu_memory_utilization is None else launch.gpu_memory_utilization


def _loaded_bytes(spec: WorkerSpec, files: ModelFiles) -> int | None:
    """Bytes of the weights in memory; None where they may be other than on the disk."""
    launch = spec.launch
    elsewhere = ("--quantization", "-q", "--load-format", "--dtype", *_SPREAD_ELSEWHERE)
    changed = launch.quantization or launch.load_format not in (None, "auto", "safetensors") or launch.dtype
    return None if changed or _given(spec, elsewhere) else files.weight_bytes


def _with_size(spec: WorkerSpec, size: int) -> WorkerSpec:
    return replace(spec, launch=spec.launch.model_copy(update={"tensor_parallel_size": size}))


def _given(spec: WorkerSpec, flags: Sequence[str]) -> bool:
    """Does the operator set one of these flags by hand?"""
    return any(argument.partition("=")[0] in flags for argument in spec.launch.extra_args)


def _number(config: Mapping[str, object], names: Sequence[str]) -> int | None:
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            return value
    return None
