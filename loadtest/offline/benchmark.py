"""
The course of a benchmark: load both, tokenise once, find transformers' best batch, repeat in turn, compare.

The rules: the same token ids to both, an equal and forced number of output tokens, counted from what came back; greedy;
the same dtype; static batches padded on the left for transformers; loading and compiling not timed, everything warmed
up; the batch size is chosen by a trial that is not among the repeats.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from loadtest.offline.engine_process import EngineError, EngineName
from loadtest.offline.figures import Agreement, agreement
from loadtest.offline.other_load import OtherLoad
from loadtest.offline.prompts import make_prompts

WARM_UP_TOKENS = 4
ModeName = Literal["transformers, one by one", "transformers, best batch", "vllm"]
ONE_BY_ONE: ModeName = "transformers, one by one"
BEST_BATCH: ModeName = "transformers, best batch"
VLLM: ModeName = "vllm"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class OfflinePlan:
    """What is asked of both. `one_by_one` prompts are enough for the mode that takes them singly: it is the slowest."""

    model: str
    dtype: str = "auto"
    device: str = "cpu"
    prompts: int = 24
    output_tokens: int = 32
    one_by_one: int = 3
    batches: tuple[int, ...] = (8, 24)
    repeats: int = 3
    seed: int = 1
    together: bool = True
    """
    Both engines loaded at once, so that rounds alternate; off where they compete for a GPU's memory. An idle vLLM takes
    2 % of two processors.
    """
    vllm_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Round:
    """One timed pass."""

    seconds: float
    prompt_tokens: int
    output_tokens: int
    others_share: float | None = None
    """Share of all processors' time that other programs took meanwhile."""

    @property
    def output_tokens_per_s(self) -> float:
        """Generated tokens alone."""
        return self.output_tokens / self.seconds

    @property
    def total_tokens_per_s(self) -> float:
        """Prompt tokens included, padding not."""
        return (self.prompt_tokens + self.output_tokens) / self.seconds


@dataclass(slots=True)
class Mode:
    """One way of doing the work, with its passes."""

    name: ModeName
    batch: int
    prompts: list[list[int]]
    rounds: list[Round] = field(default_factory=list)
    outputs: list[list[int]] = field(default_factory=list)
    """Of the last pass."""


@dataclass(frozen=True, slots=True)
class OfflineResult:
    """Everything that is shown or stored."""

    plan: OfflinePlan
    loaded: Mapping[EngineName, Mapping[str, Any]]
    load_s: Mapping[EngineName, float]
    prompt_lengths: Sequence[int]
    prompts_digest: str
    trials: Mapping[int, float | None]
    """Output tokens per second of the trial of each batch size; None: it failed, mostly for want of memory."""
    modes: Mapping[ModeName, Mode]
    engines_agree: Agreement
    batches_agree: Agreement
    """Transformers with itself, one by one against batches: what rounding alone does."""


class Engine(Protocol):
    """What is needed of an engine process."""

    def __enter__(self) -> Engine: ...

    def __exit__(self, *error: Any) -> None: ...

    def load(self, model: str, dtype: str, device: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], float]: ...

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]: ...

    def generate(
        self, prompts: Sequence[Sequence[int]], output_tokens: int, batch: int
    ) -> tuple[float, list[list[int]]]: ...


def run_offline(plan: OfflinePlan, start: Callable[[EngineName], Engine], progress: Progress) -> OfflineResult:
    """
    Runs it all.

    Raises:
        EngineError: an engine fails, or the two were loaded with different dtypes.
    """
    course = _Course(plan, start, progress)
    with ExitStack() as engines:
        course.begin_transformers(engines)
        if plan.together:
            course.begin_vllm(engines)
            modes = [ONE_BY_ONE, BEST_BATCH, VLLM]
            for number in range(plan.repeats):
                for name in modes[number % 3 :] + modes[: number % 3]:
                    course.measure(name)
            return course.result()
        for _ in range(plan.repeats):
            course.measure(ONE_BY_ONE)
            course.measure(BEST_BATCH)
    with ExitStack() as engines:
        course.begin_vllm(engines)
        for _ in range(plan.repeats):
            course.measure(VLLM)
    return course.result()


class _Course:
    """What is known so far."""

    def __init__(self, plan: OfflinePlan, start: Callable[[EngineName], Engine], progress: Progress) -> None:
        self._plan, self._start, self._progress = plan, start, progress
        self._engines: dict[EngineName, Engine] = {}
        self._loaded: dict[EngineName, Mapping[str, Any]] = {}
        self._load_s: dict[EngineName, float] = {}
        self._trials: dict[int, float | None] = {}
        self._modes: dict[ModeName, Mode] = {}
        self._prompts: list[list[int]] = []

    def begin_transformers(self, engines: ExitStack) -> None:
        """Loads, tokenises, warms up, and finds the best batch size."""
        plan = self._plan
        engine = self._load("transformers", engines, {})
        self._prompts = engine.tokenize(make_prompts(plan.prompts, plan.seed))
        few = self._prompts[: plan.one_by_one]
        self._modes[ONE_BY_ONE] = Mode(ONE_BY_ONE, 1, few)
        engine.generate(few[:1], WARM_UP_TOKENS, 1)
        for batch in sorted({min(b, plan.prompts) for b in plan.batches}):
            self._progress(f"transformers: trial of a batch of {batch}")
            try:
                engine.generate(self._prompts[:batch], WARM_UP_TOKENS, batch)
                seconds, _ = engine.generate(self._prompts[:batch], plan.output_tokens, batch)
            except EngineError as error:
                if not any(rate for rate in self._trials.values()):
                    raise
                self._progress(f"transformers: batches of {batch} failed: {str(error).splitlines()[0]}")
                self._trials[batch] = None
                break
            self._trials[batch] = batch * plan.output_tokens / seconds
        best = max(self._trials, key=lambda batch: self._trials[batch] or 0.0)
        self._modes[BEST_BATCH] = Mode(BEST_BATCH, best, self._prompts)

    def begin_vllm(self, engines: ExitStack) -> None:
        """Loads, compiles where it does, and warms up."""
        plan = self._plan
        room = max(map(len, self._prompts)) + plan.output_tokens
        engine = self._load("vllm", engines, {"max_model_len": room, **plan.vllm_options})
        dtypes = {name: loaded["dtype"] for name, loaded in self._loaded.items()}
        if len(set(dtypes.values())) > 1:
            raise EngineError(f"expected one dtype for both engines, found {dtypes}: set --dtype")
        engine.generate(self._prompts, WARM_UP_TOKENS, 0)
        self._modes[VLLM] = Mode(VLLM, 0, self._prompts)

    def measure(self, name: ModeName) -> None:
        """One timed pass."""
        plan, mode = self._plan, self._modes[name]
        own: EngineName = "vllm" if name == VLLM else "transformers"
        load = OtherLoad()
        seconds, outputs = self._engines[own].generate(mode.prompts, plan.output_tokens, mode.batch)
        prompt_tokens, generated = sum(map(len, mode.prompts)), sum(map(len, outputs))
        mode.rounds.append(Round(seconds, prompt_tokens, generated, load.share()))
        mode.outputs = outputs
        rate = mode.rounds[-1].output_tokens_per_s
        self._progress(f"{name}: repeat {len(mode.rounds)} of {plan.repeats}, {rate:.1f} output tokens/s")

    def result(self) -> OfflineResult:
        """What came out."""
        modes, singles = self._modes, self._modes[ONE_BY_ONE].outputs
        ids = json.dumps(self._prompts).encode()
        return OfflineResult(
            plan=self._plan,
            loaded=self._loaded,
            load_s=self._load_s,
            prompt_lengths=sorted(map(len, self._prompts)),
            prompts_digest=hashlib.sha256(ids).hexdigest()[:16],
            trials=self._trials,
            modes=modes,
            engines_agree=agreement(modes[BEST_BATCH].outputs, modes[VLLM].outputs),
            batches_agree=agreement(singles, modes[BEST_BATCH].outputs[: len(singles)]),
        )

    def _load(self, name: EngineName, engines: ExitStack, options: Mapping[str, Any]) -> Engine:
        plan = self._plan
        self._progress(f"{name}: loading {plan.model}")
        engine = self._engines[name] = engines.enter_context(self._start(name))
        self._loaded[name], self._load_s[name] = engine.load(plan.model, plan.dtype, plan.device, options)
        self._progress(f"{name}: loaded in {self._load_s[name]:.1f} s")
        return engine
