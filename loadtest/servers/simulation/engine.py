"""
The engine model: continuous batching in steps whose length depends on the batch, with a prefix cache and a KV budget.

Every step takes `itl_ms + itl_ms_per_seq * decoding + prefill_ms_per_token * prompt tokens of this step`; each decoding
sequence gets one token at its end. All sinks run in the engine's task and must not block.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from loadtest.servers.simulation.answers import TOKEN_BYTES, Answer
from loadtest.servers.simulation.core import CoreProcess, EngineDeadError, InProcessCore
from loadtest.servers.simulation.exposition import EngineCounts
from loadtest.servers.simulation.options import SimulatorOptions

BLOCK_TOKENS = 16

Sink = Callable[[int, str, str | None], None]
"""Gets (choice index, text of one token, finish reason or None)."""


@dataclass(slots=True, eq=False)
class Generation:
    """One sequence to generate."""

    index: int
    prompt: str
    prompt_tokens: int
    max_tokens: int
    answer: Answer
    sink: Sink
    failed: Callable[[], None]
    ignore_eos: bool = False
    n: int = 1
    salt: str = ""
    cached_tokens: int = 0
    to_prefill: int = 0
    produced: int = 0
    preempted: int = 0
    submitted_at: float = 0.0
    scheduled_at: float = 0.0
    first_at: float = 0.0
    last_at: float = 0.0

    @property
    def held_tokens(self) -> int:
        """Tokens this sequence holds in the KV cache."""
        return self.prompt_tokens + self.produced


class PrefixCache:
    """Block hashes seen lately, chained from the start of a prompt; least recently used blocks go first."""

    def __init__(self, blocks: int) -> None:
        self._blocks: OrderedDict[int, None] = OrderedDict()
        self._capacity = max(1, blocks)

    def match_and_add(self, prompt: str, salt: str) -> int:
        """Tokens of the prompt that were cached already; afterwards all its full blocks are."""
        data = prompt.encode("utf-8", "surrogatepass")
        size = BLOCK_TOKENS * TOKEN_BYTES
        chain, hit, matching = zlib.crc32(salt.encode()), 0, True
        for start in range(0, len(data) - size + 1, size):
            chain = hash((chain, data[start : start + size]))
            matching = matching and chain in self._blocks
            hit += BLOCK_TOKENS if matching else 0
            self._blocks[chain] = None
            self._blocks.move_to_end(chain)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)
        return hit


class Engine:
    """
    Runs generations until they finish or are aborted.

    `hang()` stops stepping for good, as a wedged engine does. Gauges are those of the last step, and an abort by the
    client leaves no trace in the metrics, both as in vLLM.
    """

    def __init__(self, options: SimulatorOptions, core: CoreProcess | InProcessCore) -> None:
        self.counts = EngineCounts(options.max_model_len)
        self._options, self._core = options, core
        self._cache = PrefixCache(options.kv_tokens // BLOCK_TOKENS) if options.prefix_caching else None
        self._waiting: deque[Generation] = deque()
        self._running: list[Generation] = []
        self._wake = asyncio.Event()
        self._hung = False

    @property
    def unfinished(self) -> int:
        """Sequences running or waiting."""
        return len(self._running) + len(self._waiting)

    def hang(self) -> None:
        """No step ever happens again."""
        self._hung = True

    def submit(self, generations: Iterable[Generation]) -> int:
        """Queues the choices of one request; returns the prompt tokens found in the prefix cache."""
        now = asyncio.get_running_loop().time()
        cached = 0
        for generation in generations:
            generation.submitted_at = now
            if self._cache is not None:
                hit = self._cache.match_and_add(generation.prompt, generation.salt)
                # The last prompt token is always computed, so a full hit is one block short of the prompt.
                generation.cached_tokens = min(hit, max(0, generation.prompt_tokens - 1))
                cached = cached if generation.index else generation.cached_tokens
                self.counts.prefix_cache_queries += generation.prompt_tokens
                self.counts.prefix_cache_hits += generation.cached_tokens
            generation.to_prefill = generation.prompt_tokens - generation.cached_tokens
            self._waiting.append(generation)
        self._wake.set()
        return cached

    def abort(self, generations: Iterable[Generation]) -> None:
        """Forgets these sequences; their sinks are not called again."""
        gone = set(map(id, generations))
        self._running = [g for g in self._running if id(g) not in gone]
        self._waiting = deque(g for g in self._waiting if id(g) not in gone)

    def abort_all(self) -> None:
        """Ends every sequence with finish reason "abort", as vLLM does on SIGTERM."""
        ended = [*self._running, *self._waiting]
        self._running, self._waiting = [], deque()
        for generation in ended:
            self.counts.success["abort"] += 1
            generation.sink(generation.index, "", "abort")

    def fail_all(self) -> None:
        """Tells every sequence that the engine is dead."""
        ended = [*self._running, *self._waiting]
        self._running, self._waiting = [], deque()
        for generation in ended:
            generation.failed()

    async def run(self) -> None:
        """Steps for ever; returns when the engine process has died, after failing what was in flight."""
        loop = asyncio.get_running_loop()
        until = loop.time()
        while True:
            if not self.unfinished:
                self._gauges()
                self._wake.clear()
                await self._wake.wait()
                until = loop.time()
            self._admit(loop.time())
            prefilled, decoding, step_s = self._plan()
            until = max(until + step_s, loop.time())
            await asyncio.sleep(until - loop.time())
            if self._hung:
                await asyncio.Event().wait()
            try:
                await self._core.beat()
            except EngineDeadError:
                if self._hung:
                    await asyncio.Event().wait()
                self.fail_all()
                return
            self._emit(decoding, prefilled, loop.time())

    def _admit(self, now: float) -> None:
        held = sum(g.held_tokens for g in self._running)
        while self._waiting and len(self._running) < self._options.max_num_seqs:
            candidate = self._waiting[0]
            if self._running and held + candidate.held_tokens > self._options.kv_tokens:
                return
            self._waiting.popleft()
            self._running.append(candidate)
            candidate.scheduled_at = candidate.scheduled_at or now
            held += candidate.held_tokens

    def _plan(self) -> tuple[int, list[Generation], float]:
        """Spends this step's token budget: decoding first, then prompts in order. Returns what happens and how long."""
        options = self._options
        decoding = [g for g in self._running if g.to_prefill == 0]
        budget = max(1, options.max_num_batched_tokens - len(decoding))
        prefilled = 0
        for generation in self._running:
            if generation.to_prefill and prefilled < budget:
                piece = min(generation.to_prefill, budget - prefilled)
                generation.to_prefill -= piece
                prefilled += piece
                if generation.to_prefill == 0:
                    decoding.append(generation)  # the step that ends the prompt yields the first token
        step_ms = options.itl_ms + options.itl_ms_per_seq * len(decoding) + options.prefill_ms_per_token * prefilled
        return prefilled, decoding, step_ms / 1000

    def _emit(self, decoding: list[Generation], prefilled: int, now: float) -> None:
        alive = set(map(id, self._running))
        tokens = [g for g in decoding if id(g) in alive]
        self.counts.iteration_tokens.observe(prefilled + len(tokens))
        finished = []
        for generation in tokens:
            reason = self._advance(generation, now)
            if reason is not None:
                finished.append(id(generation))
        if finished:
            done = set(finished)
            self._running = [g for g in self._running if id(g) not in done]
        self._preempt()
        self._gauges()

    def _advance(self, generation: Generation, now: float) -> str | None:
        counts, position = self.counts, generation.produced
        at_end = position >= generation.answer.length and not generation.ignore_eos
        text = "" if at_end else generation.answer.token(position)
        generation.produced += 1
        counts.generation_tokens += 1
        if position == 0:
            generation.first_at = now
            counts.time_to_first_token.observe(now - generation.submitted_at)
            counts.prompt_tokens += generation.prompt_tokens
            counts.prompt_tokens_cached += generation.cached_tokens
        else:
            counts.inter_token_latency.observe(now - generation.last_at)
        generation.last_at = now
        reason = "stop" if at_end else "length" if generation.produced >= generation.max_tokens else None
        if reason is not None:
            self._finished(generation, reason, now)
        generation.sink(generation.index, text, reason)
        return reason

    def _finished(self, generation: Generation, reason: str, now: float) -> None:
        counts, g = self.counts, generation
        counts.success[reason] += 1
        counts.request_prompt_tokens.observe(g.prompt_tokens)
        counts.request_generation_tokens.observe(g.produced)
        counts.max_num_generation_tokens.observe(g.produced)
        counts.params_n.observe(g.n)
        counts.params_max_tokens.observe(g.max_tokens)
        counts.e2e_latency.observe(now - g.submitted_at)
        counts.queue_time.observe(g.scheduled_at - g.submitted_at)
        counts.inference_time.observe(now - g.scheduled_at)
        counts.prefill_time.observe(g.first_at - g.scheduled_at)
        counts.decode_time.observe(now - g.first_at)
        counts.num_preemptions.observe(g.preempted)
        counts.prefill_computed.observe(g.prompt_tokens - g.cached_tokens)
        if g.produced > 1:
            counts.time_per_output_token.observe((now - g.first_at) / (g.produced - 1))

    def _preempt(self) -> None:
        """Sends the youngest sequences back to the queue while the KV cache is over its size; they recompute."""
        held = sum(g.held_tokens for g in self._running)
        while held > self._options.kv_tokens and len(self._running) > 1:
            victim = self._running.pop()
            held -= victim.held_tokens
            victim.to_prefill = victim.held_tokens
            victim.preempted += 1
            self.counts.preemptions += 1
            self._waiting.appendleft(victim)

    def _gauges(self) -> None:
        self.counts.running, self.counts.waiting = len(self._running), len(self._waiting)
        held = sum(g.held_tokens for g in self._running)
        self.counts.kv_cache_usage = held / self._options.kv_tokens
