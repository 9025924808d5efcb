"""
Measuring, before any load is sent, how the target counts: a few probe requests, and no tokenizer of our own.

Where the target offers vLLM's `/tokenize`, words are kept only if each is one token, so that lengths are exact. Where
it does not, the usage of a short and a long prompt gives a mean. Where that fails too, lengths are assumed, and the
notes say so: a calibration never ends a run.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from loadtest.http_client import Client, TransportFailure, build_request
from loadtest.scenarios.base import Context, Family
from loadtest.scenarios.bodies import CHAT_PATH, Messages, assistant, compact, system, user
from loadtest.scenarios.text import TokenScale
from loadtest.scenarios.words import WORDS
from loadtest.target import Target

FORCED_TOKENS = 8
"""Length of the one answer that shows whether `ignore_eos` and `min_tokens` work."""
_GROUP = 32
_ENOUGH_WORDS = 96
"""With six of these at the beginning, prompts differ (see `text.SALT_WORDS`)."""
_HOPELESS = 1.2
"""Tokens per word of a group above which it is dropped whole: its few good words are not worth the probes."""
_MOST_PROBES = 120
_CLOSE = 0.01

Count = Callable[[Any], int | None]


@dataclass(frozen=True, slots=True)
class Calibration:
    """What was found out. `notes` are for people; `probes` counts the requests it took."""

    context: Context
    notes: tuple[str, ...]
    probes: int

    def to_json(self) -> dict[str, Any]:
        """For the stored settings."""
        scale = self.context.scale
        return {
            "source": scale.source,
            "tokens_per_word": scale.tokens_per_word,
            "words": len(scale.words),
            "chat_tokens": scale.chat_tokens,
            "system_tokens": scale.system_tokens,
            "turn_tokens": scale.turn_tokens,
            "plain_tokens": scale.plain_tokens,
            "max_model_len": self.context.max_model_len,
            "forces_length": self.context.forces_length,
            "probes": self.probes,
            "notes": list(self.notes),
        }


def calibrate(
    target: Target,
    model: str,
    api_key: str | None,
    *,
    family: Family = "chat",
    salt: str = "",
    continuous_usage: bool = False,
    timeout_s: float = 60.0,
) -> Calibration:
    """
    Asks the target. `continuous_usage` is kept only where the target takes vLLM's own parameters.

    Never raises for what the target answers: what could not be measured is assumed, and noted.
    """
    client = Client(target, connect_timeout_s=5.0, read_timeout_s=timeout_s)
    try:
        probe = _Probe(client, target, model, api_key)
        room = probe.max_model_len()
        scale = _scale(probe, family, room)
        forces = family != "embeddings" and probe.forces_length(family)
    finally:
        client.close()
    if scale.source == "assumed":
        probe.notes.append("lengths are assumed, not measured: the target told no token counts")
    if family != "embeddings" and not forces:
        probe.notes.append("answers end when the model ends them: the target does not take ignore_eos and min_tokens")
    context = Context(model, scale, salt, room, forces, continuous_usage and forces)
    return Calibration(context, tuple(probe.notes), probe.sent)


@dataclass(slots=True)
class _Probe:
    """Probe requests on one connection. Every question answers None when the target did not."""

    client: Client
    target: Target
    model: str
    api_key: str | None
    sent: int = 0
    notes: list[str] = field(default_factory=list)

    def max_model_len(self) -> int | None:
        """The context length that vLLM names in its list of models."""
        answer = self._ask("GET", "/v1/models", b"")
        entries = answer.get("data") if answer else None
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and entry.get("id") == self.model:
                found = entry.get("max_model_len")
                return found if isinstance(found, int) else None
        return None

    def tokenized(self, prompt: str | Messages) -> int | None:
        """What `/tokenize` counts for a plain prompt (special tokens included) or a chat (template included)."""
        asked: dict[str, Any] = {"prompt": prompt} if isinstance(prompt, str) else {"messages": prompt}
        answer = self._ask("POST", "/tokenize", compact({"model": self.model, **asked}))
        return _whole(answer, "count")

    def used(self, prompt: str | Messages, family: Family) -> int | None:
        """What the usage of a shortest answer says of its prompt."""
        answer = self._ask("POST", *self._request(prompt, family, {"max_tokens": 1}))
        return _whole(answer.get("usage") if answer else None, "prompt_tokens")

    def forces_length(self, family: Family) -> bool:
        """Whether an answer gets exactly as many tokens as it is told to."""
        forced = {"max_tokens": FORCED_TOKENS, "min_tokens": FORCED_TOKENS, "ignore_eos": True}
        prompt: str | Messages = [user("yes")] if family == "chat" else "yes"
        answer = self._ask("POST", *self._request(prompt, family, forced))
        return _whole(answer.get("usage") if answer else None, "completion_tokens") == FORCED_TOKENS

    def _request(self, prompt: str | Messages, family: Family, more: dict[str, Any]) -> tuple[str, bytes]:
        if family == "embeddings":
            return "/v1/embeddings", compact({"model": self.model, "input": prompt})
        if isinstance(prompt, str):
            return "/v1/completions", compact({"model": self.model, "prompt": prompt, **more})
        return CHAT_PATH, compact({"model": self.model, "messages": prompt, "temperature": 0, **more})

    def _ask(self, method: str, path: str, body: bytes) -> dict[str, Any] | None:
        self.sent += 1
        try:
            exchange = self.client.exchange(build_request(method, path, self.target, body, api_key=self.api_key))
        except TransportFailure as failure:
            self.notes.append(f"probe of {path}: {failure.detail}")
            return None
        if exchange.status != 200:
            return None
        try:
            value = json.loads(bytes(exchange.body))
        except ValueError:
            return None
        return value if isinstance(value, dict) else None


def _scale(probe: _Probe, family: Family, room: int | None) -> TokenScale:
    single = probe.tokenized("yes")
    if single is None:
        return _by_usage(probe, family, room)
    words, rate = _single_token_words(probe.tokenized, single - 1)
    scale = TokenScale(words=words, tokens_per_word=rate, plain_tokens=single - 1, source="tokenize")
    return _with_template(scale, probe.tokenized, family)


def _by_usage(probe: _Probe, family: Family, room: int | None) -> TokenScale:
    """A mean over all words, or half of the model's context where that is less."""

    def count(prompt: Any) -> int | None:
        return probe.used(prompt, family)

    def asked(text: str) -> str | Messages:
        return text if family == "embeddings" else [user(text)]

    words = WORDS if room is None else WORDS[: max(2, room // 2)]
    short, long = count(asked("yes")), count(asked(" ".join(words)))
    if short is None or long is None or long <= short:
        return TokenScale()
    rate = (long - short) / (len(words) - 1)
    plain = max(0, short - 1) if family == "embeddings" else 0
    return _with_template(TokenScale(words, rate, plain_tokens=plain, source="usage"), count, family)


def _with_template(scale: TokenScale, count: Count, family: Family) -> TokenScale:
    """What the chat template adds to a user message, for a system message, and for one more turn."""
    if family != "chat":
        return scale
    one = count([user("yes")])
    with_system = count([system("yes"), user("yes")])
    two = count([user("yes"), assistant("yes"), user("yes")])
    if one is None or with_system is None or two is None:
        return replace(scale, source="assumed")
    return replace(scale, chat_tokens=one - 1, system_tokens=with_system - 1 - one, turn_tokens=two - 2 - one)


def _single_token_words(count: Count, special: int) -> tuple[tuple[str, ...], float]:
    """The words that are one token each, found in groups; all of them and their mean where too few are."""
    kept: list[str] = []
    groups: list[Sequence[str]] = [WORDS[i : i + _GROUP] for i in range(0, len(WORDS), _GROUP)]
    probes = 0
    while groups and probes < _MOST_PROBES:
        group = groups.pop()
        repeated = list(group) * math.ceil(_GROUP / len(group))
        found = count(" ".join(repeated))
        probes += 1
        if found is None:
            break
        each = (found - special) / len(repeated)
        if each == 1:
            kept.extend(group)
        elif each < _HOPELESS and len(group) > 1:
            groups += [group[: len(group) // 2], group[len(group) // 2 :]]
    words = tuple(sorted(kept, key=WORDS.index)) if len(kept) >= _ENOUGH_WORDS else WORDS
    sample = random.Random("sample").choices(words, k=512)
    found = count(" ".join(sample))
    rate = 1.0 if found is None else (found - special) / len(sample)
    return words, 1.0 if abs(rate - 1) <= _CLOSE else rate


def _whole(answer: Any, key: str) -> int | None:
    found = answer.get(key) if isinstance(answer, dict) else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None
