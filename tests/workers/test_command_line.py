"""From a specification to an argument list and an environment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.config.settings import Launch, Watch
from gateway.types import WorkerAddress
from gateway.workers.command_line import OPTIONAL_FLAGS, command_line, fingerprint
from gateway.workers.spec import WorkerSpec

TCP = WorkerAddress(host="127.0.0.1", port=20001)
SPEC = WorkerSpec(
    name="smol-0",
    model="smol",
    source="org/smol",
    watch=Watch(),
    drain_timeout_s=25,
    engine_python=Path("/engine/bin/python"),
    engine_command=("{python}", "-m", "vllm.entrypoints.openai.api_server"),
    api_key="worker-secret",
)

POISON = """
VLLM_PORT VLLM_PORT_8000_TCP VLLM_SERVICE_HOST VLLM_HOST_IP VLLM_SERVER_DEV_MODE RANK LOCAL_RANK WORLD_SIZE MASTER_ADDR
MASTER_PORT VLLM_DP_RANK GATEWAY_TOKEN PYTHONPATH PYTHONHOME VIRTUAL_ENV CUDA_VISIBLE_DEVICES AWS_SECRET_ACCESS_KEY
"""


def argv(launch: Launch | None = None, **changes: object) -> list[str]:
    spec = replace(SPEC, launch=launch or Launch(), **changes)  # type: ignore[arg-type]
    return list(command_line(spec, TCP, {}).argv)


def environ(inherited: dict[str, str] | None = None, **changes: object) -> dict[str, str]:
    spec = replace(SPEC, **changes)  # type: ignore[arg-type]
    return dict(command_line(spec, TCP, inherited or {}).environ)


def test_the_plainest_worker() -> None:
    """Exactly this and nothing else: what is not configured is left to vLLM (eager mode on a CPU excepted)."""
    assert [
        "/engine/bin/python", "-m", "vllm.entrypoints.openai.api_server",
        "--model", "org/smol", "--served-model-name", "smol", "--host", "127.0.0.1", "--port", "20001",
        "--enforce-eager", "--enable-prompt-tokens-details",
    ] == argv()  # fmt: skip


def test_every_option_has_its_flag_and_extra_args_come_last() -> None:
    """Operators' own arguments win, because argparse takes the last."""
    launch = Launch(
        tensor_parallel_size=2,
        gpu_memory_utilization=0.8,
        kv_cache_memory_bytes="2G",
        max_model_len=2048,
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        enable_prefix_caching=False,
        dtype="bfloat16",
        quantization="fp8",
        kv_cache_dtype="fp8",
        load_format="dummy",
        enforce_eager=False,
        enable_lora=True,
        lora_modules={"fin": "/lora/fin", "law": "org/law"},
        speculative_config={"method": "ngram", "num_speculative_tokens": 3},
        trust_remote_code=True,
        extra_args=["--max-model-len", "1024"],
    )
    found = argv(launch, variant="cuda", gpus=(2, 3))[11:]
    assert [
        "--tensor-parallel-size", "2", "--gpu-memory-utilization", "0.8", "--kv-cache-memory-bytes", "2G",
        "--max-model-len", "2048", "--max-num-seqs", "64", "--max-num-batched-tokens", "8192", "--dtype", "bfloat16",
        "--quantization", "fp8", "--kv-cache-dtype", "fp8", "--load-format", "dummy",
        "--no-enable-prefix-caching", "--no-enforce-eager", "--enable-lora", "--trust-remote-code",
        "--lora-modules", "fin=/lora/fin", "law=org/law",
        "--speculative-config", json.dumps({"method": "ngram", "num_speculative_tokens": 3}),
        "--enable-prompt-tokens-details", "--max-model-len", "1024",
    ] == found  # fmt: skip


def test_an_exact_cache_size_is_not_overridden_on_a_cpu() -> None:
    """VLLM_CPU_KVCACHE_SPACE beats the flag in silence, so only one of the two is given."""
    launch = Launch(kv_cache_memory_bytes="512M")
    assert "512M" in argv(launch)
    assert "VLLM_CPU_KVCACHE_SPACE" not in environ(launch=launch)
    assert "1" == environ()["VLLM_CPU_KVCACHE_SPACE"]


@pytest.mark.parametrize(
    ("variant", "wanted", "flags"),
    [
        ("cpu", None, ["--enforce-eager"]),
        ("cpu", False, ["--no-enforce-eager"]),
        ("cuda", None, []),
        ("cuda", True, ["--enforce-eager"]),
    ],
)
def test_eager_mode_is_the_default_on_a_cpu_only(variant: str, wanted: bool | None, flags: list[str]) -> None:
    """And the operator's word counts in both directions."""
    assert flags == [arg for arg in argv(Launch(enforce_eager=wanted), variant=variant) if "enforce-eager" in arg]


def test_a_unix_socket_takes_the_place_of_host_and_port() -> None:
    """Both at once would open a port that nobody asked for."""
    found = command_line(SPEC, WorkerAddress(uds="/run/w.sock"), {}).argv
    assert "/run/w.sock" == found[found.index("--uds") + 1]
    assert not {"--host", "--port"} & set(found)


def test_a_template_with_the_model_in_it_gets_no_second_model() -> None:
    """`vllm serve MODEL` and relatives; --model beside it is refused by vLLM."""
    found = argv(engine_command=("{python}", "-m", "vllm.entrypoints.cli.main", "serve", "{model}"))
    assert ["-m", "vllm.entrypoints.cli.main", "serve", "org/smol", "--served-model-name", "smol"] == found[1:7]
    assert "--model" not in found


def test_braces_that_are_not_ours_stay() -> None:
    """A template may carry JSON."""
    assert '{"a": 1}' in argv(engine_command=("{python}", '{"a": 1}'))


def test_the_key_travels_in_the_environment_only() -> None:
    """An argument list can be read by every user of the machine."""
    line = command_line(SPEC, TCP, {})
    assert "worker-secret" == line.environ["VLLM_API_KEY"]
    assert not any("worker-secret" in arg for arg in line.argv)
    assert "worker-secret" not in repr(line)


def test_what_breaks_a_worker_stays_behind() -> None:
    """A Kubernetes service called vllm, an outer launcher's ranks, development mode, the supervisor's own secrets."""
    poison = dict.fromkeys(POISON.split(), "x")
    assert not set(poison) & set(environ(poison))


def test_what_a_worker_needs_passes_through() -> None:
    """Paths, caches, hub access, proxies, certificates, libraries."""
    needed = {
        name: f"value of {name}"
        for name in (
            "PATH", "HOME", "HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE", "HF_HOME", "XDG_CACHE_HOME", "TMPDIR",
            "HTTP_PROXY", "https_proxy", "ALL_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "LD_LIBRARY_PATH",
            "OPENBLAS_NUM_THREADS", "CUDA_HOME", "NCCL_P2P_DISABLE", "VLLM_CACHE_ROOT", "LC_ALL",
        )
    }  # fmt: skip
    assert needed == {name: value for name, value in environ(needed).items() if name in needed}


def test_the_fixed_variables() -> None:
    """Keep-alive longer than our pools', no usage reports, equal block hashes."""
    found = environ({"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "5"})
    fixed = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "120", "VLLM_NO_USAGE_STATS": "1", "PYTHONHASHSEED": "0"}
    assert fixed == {name: found[name] for name in fixed}


def test_loopback_never_goes_through_a_proxy() -> None:
    """The worker's own processes talk over loopback too; what was listed before stays."""
    found = environ({"HTTP_PROXY": "http://proxy:3128", "no_proxy": "internal, 127.0.0.1"})
    assert "internal,127.0.0.1,localhost,::1" == found["no_proxy"] == found["NO_PROXY"]


def test_gpus_are_counted_in_bus_order() -> None:
    """CUDA's own order is by speed and differs from the driver's."""
    found = environ({"CUDA_VISIBLE_DEVICES": "7"}, variant="cuda", gpus=(2, 3))
    assert ("PCI_BUS_ID", "2,3") == (found["CUDA_DEVICE_ORDER"], found["CUDA_VISIBLE_DEVICES"])
    assert "VLLM_CPU_KVCACHE_SPACE" not in found


def test_a_cpu_worker_gets_its_cores_and_its_cache() -> None:
    """Disjoint sets keep replicas off each other's cores."""
    found = environ(cpus=(2, 3), launch=Launch(cpu_kv_cache_gib=4))
    assert ("2,3", "4") == (found["VLLM_CPU_OMP_THREADS_BIND"], found["VLLM_CPU_KVCACHE_SPACE"])
    assert "CUDA_VISIBLE_DEVICES" not in found
    assert "VLLM_CPU_OMP_THREADS_BIND" not in environ()


def test_tensor_parallel_on_a_cpu_is_not_bound() -> None:
    """vLLM wants a NUMA node per rank and refuses to start otherwise."""
    found = environ(launch=Launch(tensor_parallel_size=2))
    assert ("nobind", "1") == (found["VLLM_CPU_OMP_THREADS_BIND"], found["OMP_NUM_THREADS"])


def test_the_configuration_has_the_last_word_except_on_the_key() -> None:
    """`launch.env` may set what is scrubbed, and cannot break what we rely on."""
    launch = Launch(env={"VLLM_PORT": "6000", "PYTHONHASHSEED": "1", "VLLM_API_KEY": "other", "NO_PROXY": "x"})
    found = environ(launch=launch)
    assert ("6000", "1", "worker-secret") == (found["VLLM_PORT"], found["PYTHONHASHSEED"], found["VLLM_API_KEY"])
    assert "x,127.0.0.1,localhost,::1" == found["NO_PROXY"]


def test_a_launch_has_its_own_temporary_folder_and_a_lasting_cache_of_kernels() -> None:
    """What is compiled must not go with the launch; who sets either by hand is obeyed."""
    scratch = Path("/run/gw/tmp-1")
    found = command_line(SPEC, TCP, {"HOME": "/home/me", "TMPDIR": "/var/tmp"}, scratch_dir=scratch).environ
    assert "/run/gw/tmp-1" == found["TMPDIR"]
    assert "/home/me/.cache/vllm-gateway/torchinductor" == found["TORCHINDUCTOR_CACHE_DIR"]
    for inherited, kernels in (
        ({"GATEWAY_CACHE_DIR": "/c", "HOME": "/h"}, "/c/torchinductor"),
        ({"XDG_CACHE_HOME": "/x", "HOME": "/h"}, "/x/vllm-gateway/torchinductor"),
        ({"TORCHINDUCTOR_CACHE_DIR": "/mine", "HOME": "/h"}, "/mine"),
    ):
        assert kernels == command_line(SPEC, TCP, inherited, scratch_dir=scratch).environ["TORCHINDUCTOR_CACHE_DIR"]
    assert "TORCHINDUCTOR_CACHE_DIR" not in command_line(SPEC, TCP, {}, scratch_dir=scratch).environ
    own = replace(SPEC, launch=Launch(env={"TMPDIR": "/mine"}))
    assert "/mine" == command_line(own, TCP, {"HOME": "/h"}, scratch_dir=scratch).environ["TMPDIR"]


def test_optional_flags_yield_to_the_operators() -> None:
    """Given when known, once, and not where extra_args have them."""
    known = frozenset(OPTIONAL_FLAGS)
    argv = command_line(SPEC, TCP, {}, known_flags=known).argv
    assert 1 == argv.count("--enable-request-id-headers")
    own = replace(SPEC, launch=Launch(extra_args=["--disable-access-log-for-endpoints=/health"]))
    argv = command_line(own, TCP, {}, known_flags=known).argv
    assert "--disable-access-log-for-endpoints" not in argv
    assert "--disable-access-log-for-endpoints=/health" in argv


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"api_key": "other", "log_dir": Path("/elsewhere"), "name": "smol-7"}, True),
        ({"gpus": (5,)}, True),
        ({"launch": Launch(max_num_seqs=7)}, False),
        ({"launch": Launch(env={"A": "1"})}, False),
        ({"launch": Launch(transport="uds")}, False),
        ({"launch": Launch(gpus=[1])}, False),
        ({"launch": Launch(cpu_kv_cache_gib=7)}, False),
        ({"launch": Launch(start_timeout_s=7)}, True),
        ({"source": "/models/other"}, False),
        ({"engine_python": Path("/other/python")}, False),
        ({"cpus": (3,)}, False),
        ({"mig_device": "MIG-1"}, False),
    ],
)
def test_the_fingerprint_is_what_the_configuration_asks(change: dict[str, object], same: bool) -> None:
    """A running worker is replaced if and only if it would be started differently."""
    assert same == (fingerprint(SPEC) == fingerprint(replace(SPEC, **change)))  # type: ignore[arg-type]


def test_a_record_finds_all_it_needs_in_the_command() -> None:
    """Besides arguments and environment, which hold the key and are not printed."""
    command = command_line(replace(SPEC, gpus=(1,)), TCP, {}, launch_id="abc", scratch_dir=Path("/s"))
    assert ("abc", TCP, (1,), Path("/s")) == (command.launch_id, command.address, command.gpus, command.scratch_dir)
    assert fingerprint(SPEC) == command.fingerprint
