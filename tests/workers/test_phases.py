"""What a starting worker is said to do, from the log lines of vLLM 0.32."""

from __future__ import annotations

from gateway.workers.phases import LAUNCHED, phase_after

LINES = [
    "(APIServer pid=1) INFO 11-29 18:00:01 [utils.py:253] non-default args: {'model': '/models/smol'}",
    "(APIServer pid=1) INFO 11-29 18:00:02 [model.py:514] Resolved architecture: LlamaForCausalLM",
    "(EngineCore pid=2) INFO 11-29 18:00:03 [core.py:93] Initializing a V1 LLM engine (v0.32.0) with config: ...",
    "(EngineCore pid=2) INFO 11-29 18:00:04 [parallel_state.py:1203] world_size=1 rank=0 local_rank=0",
    "(Worker pid=3) INFO 11-29 18:00:05 [cpu_model_runner.py:53] Starting to load model /models/smol...",
    "(Worker pid=3) Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00, 9.06it/s]",
    "(Worker pid=3) INFO 11-29 18:00:06 [default_loader.py:308] Loading weights took 0.12 seconds",
    "(EngineCore pid=2) INFO 11-29 18:00:07 [backends.py:643] Dynamo bytecode transform time: 4.42 s",
    "(EngineCore pid=2) INFO 11-29 18:00:08 [kv_cache_utils.py:1229] GPU KV cache size: 43,688 tokens",
    "(EngineCore pid=2) INFO [gpu_model_runner.py:4001] Graph capturing finished in 3 secs, took 0.5 GiB",
    "(EngineCore pid=2) INFO [core.py:262] init engine (profile, create kv cache, warmup model) took 5.2 s",
    "(APIServer pid=1) INFO 11-29 18:00:11 [api_server.py:1725] Supported tasks: ['generate']",
    "(APIServer pid=1) INFO 11-29 18:00:12 [api_server.py:1351] Starting vLLM server on http://127.0.0.1:8000",
    "INFO:     Application startup complete.",
]


def test_each_line_leads_to_its_phase() -> None:
    """In the order in which vLLM logs them, with growing progress."""
    phase, words, shares = LAUNCHED, [], []
    for line in LINES:
        phase = phase_after(phase, [line])
        words.append(phase.words)
        shares.append(phase.progress)
    assert [
        "reading the model's configuration",
        "preparing LlamaForCausalLM",
        "starting the engine",
        "joining the workers",
        "loading weights",
        "loading weights, 50 %",
        "weights loaded",
        "compiling",
        "allocating the KV cache",
        "capturing CUDA graphs",
        "engine ready",
        "preparing the server",
        "opening the port",
        "checking",
    ] == words
    assert sorted(set(shares)) == shares
    assert 0 < shares[0]
    assert shares[-1] < 1


def test_a_phase_never_goes_back() -> None:
    """The processes' lines overtake each other."""
    late = phase_after(LAUNCHED, LINES)
    assert late == phase_after(late, LINES[:5])


def test_other_lines_change_nothing() -> None:
    """Most of the output is not about phases."""
    assert LAUNCHED == phase_after(LAUNCHED, ["WARNING something", "", "Loading the world"])
