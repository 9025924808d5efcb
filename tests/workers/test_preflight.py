"""What is bound to fail is told before anything is started, and nothing else is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config.settings import Launch, Watch
from gateway.workers.model_files import ModelFiles
from gateway.workers.placement import Gpu
from gateway.workers.preflight import Resources, check_fleet, check_launch
from gateway.workers.spec import WorkerSpec

GIB = 1024**3
SMOL = {
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49152,
    "max_position_embeddings": 8192,
}
NOTHING = Resources({})


def spec(name: str = "smol-0", *, variant: str = "cuda", gpus: tuple[int, ...] = (), **launch: object) -> WorkerSpec:
    return WorkerSpec(
        name=name,
        model=name.rpartition("-")[0],
        watch=Watch(),
        drain_timeout_s=0,
        source=f"/models/{name.rpartition('-')[0]}",
        variant="cpu" if variant == "cpu" else "cuda",
        launch=Launch.model_validate(launch),
        gpus=gpus,
    )


def files(weights: int | None = None, **config: object) -> ModelFiles:
    return ModelFiles(Path("/models/smol"), {**SMOL, **config}, weights)


def told(worker: WorkerSpec, model: ModelFiles | None, resources: Resources = NOTHING) -> list[str]:
    return [str(problem) for problem in check_launch(worker, model, resources)]


@pytest.mark.parametrize("size", [2, 4, 5, 8])
def test_tensor_parallelism_that_does_not_divide_the_heads_is_refused(size: int) -> None:
    """vLLM would say so half a minute later."""
    assert [f"models.smol.launch.tensor_parallel_size: {size} does not divide the model's 9 attention heads"] == told(
        spec(tensor_parallel_size=size), files()
    )


@pytest.mark.parametrize("size", [1, 3])
def test_tensor_parallelism_that_vllm_accepts_is_not_refused(size: int) -> None:
    """Nine heads, three key-value heads and 49152 words go to three ranks."""
    assert [] == told(spec(tensor_parallel_size=size), files())


@pytest.mark.parametrize(("kv_heads", "size", "refused"), [(4, 3, True), (4, 6, True), (4, 2, False), (2, 4, False)])
def test_key_value_heads_are_divided_or_repeated(kv_heads: int, size: int, refused: bool) -> None:
    """One number must divide the other; with compressed attention (MLA) they mean nothing."""
    model = files(num_attention_heads=12, num_key_value_heads=kv_heads)
    problems = told(spec(tensor_parallel_size=size), model)
    assert refused == any(f"{kv_heads} key-value heads cannot be shared out to {size} GPUs" in one for one in problems)
    compressed = files(num_attention_heads=12, num_key_value_heads=kv_heads, kv_lora_rank=512)
    assert [] == told(spec(tensor_parallel_size=size), compressed)


def test_the_padded_vocabulary_is_divided_too() -> None:
    """151936 is 64 times 2374, which three does not divide; 32001 is padded to 32064, which it does."""
    heads = {"num_attention_heads": 12, "num_key_value_heads": 12}
    assert [
        "models.smol.launch.tensor_parallel_size: 3 does not divide the model's vocabulary of 151936 (padded) words"
    ] == (told(spec(tensor_parallel_size=3), files(vocab_size=151936, **heads)))
    assert [] == told(spec(tensor_parallel_size=3), files(vocab_size=32001, **heads))


def test_a_multimodal_model_is_judged_by_its_language_part() -> None:
    """The numbers of the whole are those of something else."""
    model = ModelFiles(Path("/m"), {"vocab_size": 7, "text_config": {**SMOL}}, None)
    assert 1 == len(told(spec(tensor_parallel_size=2), model))
    assert [] == told(spec(tensor_parallel_size=3), model)


def test_a_context_longer_than_the_models_is_refused() -> None:
    """With both numbers; as long is fine."""
    assert [
        "models.smol.launch.max_model_len: 9000 is more than the model's own 8192; lower it, or leave it out"
    ] == told(spec(max_model_len=9000), files())
    assert [] == told(spec(max_model_len=8192), files())


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8192}},
        {"rope_parameters": {"rope_type": "linear", "factor": 4}},
        {"rope_parameters": {"full_attention": {"factor": 4.0}, "sliding_attention": {"rope_type": "default"}}},
        {"model_max_length": 32768},
    ],
)
def test_a_stretched_context_counts(rope: dict[str, object]) -> None:
    """Where several statements are made the most generous one does: vLLM may be the judge of the rest."""
    assert [] == told(spec(max_model_len=32768), files(**rope))
    assert 1 == len(told(spec(max_model_len=32769), files(**rope)))


def test_who_overrides_the_model_is_believed() -> None:
    """By vLLM's variable, or by options that change what the rules are about."""
    assert [] == told(spec(max_model_len=9000, env={"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}), files())
    assert [] == told(spec(max_model_len=9000, extra_args=["--hf-overrides", "{}"]), files())
    assert [] == told(spec(max_model_len=9000, extra_args=["--max-model-len=100"]), files())
    assert [] == told(spec(tensor_parallel_size=2, extra_args=["-tp", "3"]), files())


def test_a_model_that_is_not_here_cannot_be_judged() -> None:
    """It will be downloaded; and a configuration without the numbers has none to check."""
    assert [] == told(spec(tensor_parallel_size=2, max_model_len=10**9), None)
    assert [] == told(spec(tensor_parallel_size=2, max_model_len=10**9), ModelFiles(Path("/m"), {}, None))


def test_weights_that_do_not_fit_are_refused_with_the_size_that_would() -> None:
    """140 GiB of weights on 80 GiB GPUs: two do, if the heads can be divided by two."""
    resources = Resources({index: Gpu(index, total_bytes=80 * GIB) for index in range(4)})
    model = files(140 * GIB, num_attention_heads=64, num_key_value_heads=8)
    (problem,) = told(spec(gpus=(0,)), model, resources)
    assert "the weights take 140.0 GiB of each GPU, and a worker reserves 73.6 GiB (0.92 of it); set it to 2" in problem
    assert [] == told(spec(gpus=(0, 1), tensor_parallel_size=2), model, resources)
    (problem,) = told(spec(gpus=(0, 1), tensor_parallel_size=2, gpu_memory_utilization=0.5), model, resources)
    assert "set it to 4" in problem


@pytest.mark.parametrize(
    "launch",
    [
        {"quantization": "fp8"},
        {"load_format": "dummy"},
        {"dtype": "float16"},
        {"extra_args": ["--cpu-offload-gb", "80"]},
    ],
)
def test_weights_that_change_while_loading_are_not_judged(launch: dict[str, object]) -> None:
    """They take another size than on the disk, or lie elsewhere."""
    resources = Resources({0: Gpu(0, total_bytes=80 * GIB)})
    assert [] == told(spec(gpus=(0,), **launch), files(140 * GIB), resources)


def test_unknown_sizes_are_not_judged() -> None:
    """No GPU was found (`gateway check` elsewhere), or the download is not complete."""
    assert [] == told(spec(gpus=(0,)), files(140 * GIB), NOTHING)
    assert [] == told(spec(gpus=(0,)), files(None), Resources({0: Gpu(0, total_bytes=GIB)}))


def test_a_size_that_vllm_cannot_read_is_refused() -> None:
    """It takes letters, not units."""
    (problem,) = told(spec(kv_cache_memory_bytes="2GB"), None)
    assert "models.smol.launch.kv_cache_memory_bytes: expected a size in bytes such as 2G" in problem


def test_workers_on_one_gpu_must_fit_together() -> None:
    """Each with its share; the sentence adds them up."""
    resources = Resources({0: Gpu(0, total_bytes=80 * GIB)})
    pair = [spec("a-0", gpus=(0,), gpu_memory_utilization=0.5), spec("b-0", gpus=(0,), gpu_memory_utilization=0.5)]
    (problem,) = check_fleet(pair, {}, resources)
    assert "models.b.launch.gpu_memory_utilization" == problem.key
    assert "the workers on GPU 0 reserve 100% of its memory together (a-0 50%, b-0 50%), 95% are possible" in str(
        problem
    )
    assert () == check_fleet([pair[0], replace(pair[1], launch=Launch(gpu_memory_utilization=0.45))], {}, resources)
    exact = [spec(f"a-{index}", gpus=(0,), kv_cache_memory_bytes="20G") for index in range(3)]
    assert () == check_fleet(exact, {"/models/a": files(4 * GIB)}, resources)
    assert 1 == len(check_fleet(exact, {"/models/a": files(10 * GIB)}, resources))


def test_two_workers_that_want_a_whole_gpu_are_refused_on_one() -> None:
    """More replicas than GPUs, without a word about memory."""
    resources = Resources({0: Gpu(0, total_bytes=80 * GIB)})
    (problem,) = check_fleet([spec("a-0", gpus=(0,)), spec("a-1", gpus=(0,))], {}, resources)
    assert "a-0 92%, a-1 92%" in str(problem)


def test_cpu_workers_must_fit_into_the_machine() -> None:
    """Weights and KV caches of all of them."""
    fleet = [spec(f"a-{index}", variant="cpu", cpu_kv_cache_gib=4) for index in range(3)]
    model = {"/models/a": files(2 * GIB)}
    (problem,) = check_fleet(fleet, model, Resources({}, memory_bytes=16 * GIB))
    assert "models.a.replicas: weights and KV caches of all workers take 18.0 GiB, this machine has 16.0 GiB" in str(
        problem
    )
    assert () == check_fleet(fleet, model, Resources({}, memory_bytes=32 * GIB))
    assert () == check_fleet(fleet, model, Resources({}))


def test_a_problem_of_all_replicas_is_told_once() -> None:
    """And static workers are nobody's business."""
    fleet = [spec(f"a-{index}", tensor_parallel_size=2) for index in range(3)]
    assert 1 == len(check_fleet(fleet, {"/models/a": files()}, NOTHING))
