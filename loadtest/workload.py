"""Prompts of the chat scenario: seeded, unique per request so that no prefix cache is hit by accident."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

_TOPICS = ("rivers", "bridges", "bread", "clocks", "lighthouses", "railways", "maps", "glass", "tides", "markets")
_WORDS = ("old", "new", "slow", "quiet", "steep", "narrow", "bright", "northern", "heavy", "plain", "early", "distant")


@dataclass(frozen=True, slots=True)
class ChatPlan:
    """What one chat request asks for. `prompt_words` is about the prompt's length in tokens."""

    model: str
    max_tokens: int = 64
    prompt_words: int = 64
    ignore_eos: bool = False
    seed: int = 1


def chat_bodies(plan: ChatPlan, user: int) -> Iterator[bytes]:
    """An endless, reproducible series of request bodies for one user."""
    source = random.Random(f"{plan.seed}:{user}")
    while True:
        salt = f"{source.getrandbits(48):012x}"
        filler = " ".join(source.choice(_WORDS) for _ in range(max(0, plan.prompt_words - 12)))
        text = f"[{salt}] Tell me about {source.choice(_TOPICS)}, using these words: {filler}."
        body: dict[str, object] = {
            "model": plan.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": plan.max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if plan.ignore_eos:
            body["ignore_eos"] = True
        yield json.dumps(body, separators=(",", ":")).encode()
