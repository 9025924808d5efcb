"""What a starting worker is doing, read off its log lines: for people only, never a sign of readiness."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StartPhase:
    """`words` for the console; `progress` from 0 to 1, a rough share of the usual start time."""

    words: str
    progress: float


LAUNCHED = StartPhase("starting the interpreter", 0.0)
WARMING = StartPhase("warming up", 0.97)

_SHARDS = re.compile(r"Loading safetensors checkpoint shards:\s+(\d+)%")
_SHARDS_FROM, _SHARDS_TO = 0.35, 0.55

# In the order in which vLLM logs them, CPU and CUDA forms alike; a line that one version lacks costs nothing.
_TABLE: tuple[tuple[re.Pattern[str], StartPhase], ...] = tuple(
    (re.compile(pattern), StartPhase(words, progress))
    for pattern, words, progress in (
        (r"non-default args:", "reading the model's configuration", 0.10),
        (r"Resolved architecture: (?P<name>\w+)", "preparing {name}", 0.15),
        (r"Initializing a V1 LLM engine", "starting the engine", 0.25),
        (r"world_size=\d+ rank=\d+", "joining the workers", 0.30),
        (r"Starting to load model", "loading weights", _SHARDS_FROM),
        (r"Loading weights took [\d.]+ seconds|Model loading took .* GiB", "weights loaded", _SHARDS_TO),
        (
            r"Dynamo bytecode transform time|Compiling a graph for compile range|Warming up model for the compilation"
            r"|saved AOT compiled function",
            "compiling",
            0.65,
        ),
        (
            r"Available KV cache memory: [\d.]+ GiB|(?:GPU|CPU) KV cache size: [\d,]+ tokens",
            "allocating the KV cache",
            0.8,
        ),
        (r"Capturing CUDA graphs|Graph capturing finished in", "capturing CUDA graphs", 0.88),
        (r"init engine \(profile, create kv cache, warmup model\) took", "engine ready", 0.92),
        (r"Supported tasks:", "preparing the server", 0.94),
        (r"Starting vLLM server on", "opening the port", 0.95),
        (r"Application startup complete", "checking", 0.96),
    )
)


def phase_after(current: StartPhase, lines: Iterable[str]) -> StartPhase:
    """
    The phase once `lines` have been logged.

    It never goes back: several processes log at once, and their lines overtake each other.
    """
    for line in lines:
        found = _phase_of(line)
        if found is not None and found.progress >= current.progress:
            current = found
    return current


def _phase_of(line: str) -> StartPhase | None:
    shards = _SHARDS.search(line)
    if shards:
        percent = min(int(shards[1]), 100)
        return StartPhase(f"loading weights, {percent} %", _SHARDS_FROM + (_SHARDS_TO - _SHARDS_FROM) * percent / 100)
    for pattern, phase in _TABLE:
        match = pattern.search(line)
        if match:
            return StartPhase(phase.words.format(**match.groupdict()), phase.progress)
    return None
