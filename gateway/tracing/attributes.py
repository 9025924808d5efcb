"""
What spans say of a request, by OpenTelemetry's conventions for generative AI and HTTP; `gateway.*` is our own. Pure.

Prompts and answers are never in a span, and neither is anything else that a client writes freely.
"""

from __future__ import annotations

from collections.abc import Mapping

from gateway.record import ExchangeRecord
from gateway.types import Endpoint, Outcome, WorkerView

Attribute = str | int | float | bool | tuple[str, ...]

PROVIDER = "vllm"
OPERATIONS: Mapping[Endpoint, str] = {
    Endpoint.CHAT_COMPLETIONS: "chat",
    Endpoint.RESPONSES: "chat",
    Endpoint.MESSAGES: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.EMBEDDINGS: "embeddings",
    Endpoint.COUNT_TOKENS: "count_tokens",
    Endpoint.SCORE: "score",
    Endpoint.RERANK: "rerank",
    Endpoint.AUDIO: "transcription",
    Endpoint.TOKENIZE: "tokenize",
    Endpoint.DETOKENIZE: "detokenize",
}
"""`gen_ai.operation.name`; the conventions know the first three words, and let others be added."""

FAULTS = frozenset(Outcome) - {Outcome.OK, Outcome.CLIENT_ERROR, Outcome.CLIENT_CLOSED, Outcome.REJECTED}
"""Outcomes that make a server span an error: as with HTTP's 4xx, a client's doing does not."""


def at_start(record: ExchangeRecord, method: str) -> dict[str, Attribute]:
    """Of the server span, when nothing but the route is known."""
    return {
        "http.request.method": method,
        "http.route": record.endpoint.value,
        "gen_ai.operation.name": OPERATIONS[record.endpoint],
        "gen_ai.provider.name": PROVIDER,
        "gateway.request_id": record.request_id,
    }


def at_end(record: ExchangeRecord) -> dict[str, Attribute]:
    """Of the server span, from the record that is logged and counted too."""
    said: dict[str, Attribute | None] = {
        "http.response.status_code": record.status,
        "gen_ai.request.model": record.model or None,
        "gen_ai.response.finish_reasons": record.finish_reasons or None,
        "gen_ai.usage.input_tokens": record.prompt_tokens,
        "gen_ai.usage.cache_read.input_tokens": record.cached_tokens,
        "gen_ai.usage.output_tokens": None if record.output_tokens_estimated else record.output_tokens,
        "gen_ai.server.time_to_first_token": record.ttft_s,
        "gen_ai.server.time_per_output_token": record.tpot_s,
        "error.type": None if record.outcome is Outcome.OK else record.outcome.value,
        "gateway.outcome": record.outcome.value,
        "gateway.stream": record.stream,
        "gateway.attempts": record.attempts,
        "gateway.tenant": record.tenant or None,
        "gateway.worker": record.worker or None,
        "gateway.policy": record.policy or None,
        "gateway.decision": record.decision or None,
        "gateway.rejection": record.rejection or None,
        "gateway.disconnect": record.disconnect.value if record.disconnect is not None else None,
    }
    stages: dict[str, Attribute | None] = {
        f"gateway.overhead.{stage}": spent_s for stage, spent_s in record.stages.items()
    }
    return {name: value for name, value in (said | stages).items() if value is not None}


def of_attempt(record: ExchangeRecord, worker: WorkerView) -> dict[str, Attribute]:
    """Of a client span, when its worker has been chosen."""
    address = worker.address
    return {
        "http.request.method": "POST",
        "gen_ai.operation.name": OPERATIONS[record.endpoint],
        "gen_ai.provider.name": PROVIDER,
        "gen_ai.request.model": record.model,
        "server.address": address.uds or address.host,
        **({} if address.uds else {"server.port": address.port}),
        "http.request.resend_count": record.attempts - 1,
        "gateway.worker": worker.name,
    }
