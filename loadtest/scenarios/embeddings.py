"""Embeddings: batches of texts to a pooling model."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from loadtest.scenarios.base import Context, Defaults, Request, Session
from loadtest.scenarios.bodies import check_fits, compact
from loadtest.scenarios.lengths import Length, fixed
from loadtest.scenarios.options import about

Encoding = Literal["float", "base64"]


@dataclass(frozen=True, slots=True)
class Embeddings:
    """Each session is one batch. Nothing streams: there is one latency, and the rate of prompt tokens."""

    name: ClassVar[str] = "embeddings"
    description: ClassVar[str] = "batches of texts to embed (a pooling model)"
    kinds: ClassVar[tuple[str, ...]] = ("embeddings",)
    defaults: ClassVar[Defaults] = Defaults(users=8)

    context: Context
    inputs: int = field(default=8, metadata=about("texts in a request", low=1))
    input_tokens: Length = field(default=fixed(128), metadata=about("tokens of each text"))
    encoding: Encoding = field(default="float", metadata=about("how vectors come back: float or base64"))

    def __post_init__(self) -> None:
        check_fits(self.context, self.name, self.input_tokens.longest, 0)

    def session(self, rng: random.Random, number: int) -> Session:
        """One batch."""
        context, scale = self.context, self.context.scale
        texts = [
            scale.text(rng, self.input_tokens.draw(rng) - scale.plain_tokens, before=scale.salt(rng, context.salt))
            for _ in range(self.inputs)
        ]
        body = compact({"model": context.model, "input": texts, "encoding_format": self.encoding})
        yield Request("/v1/embeddings", body, stream=False, kind="embeddings", family="embeddings")
