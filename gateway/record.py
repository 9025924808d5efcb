"""What is kept of one exchange: the one source of its metrics and of its line in the log."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.types import Endpoint, Family, Outcome, Phase, RetryReason, Stage


@dataclass(slots=True)
class ExchangeRecord:
    """
    What one exchange was, filled in by the coroutine that owns it and handed over once, at its end.

    It is the only source of the per-request metrics and of the canonical log line, so that the two agree. Times are
    seconds; a value that was never reached stays None. `model` is a configured name, or "" when the request named none
    we know (the label is then `other`). `tenant` is the name of the API key, "" for anonymous callers, None when a key
    was refused: such a request is nobody's. `status` is what the client was sent, None when nothing was.
    """

    request_id: str
    endpoint: Endpoint
    family: Family
    started_at_s: float
    model: str = ""
    tenant: str | None = ""
    stream: bool = False
    status: int | None = None
    outcome: Outcome = Outcome.INTERNAL
    worker: str = ""
    upstream_request_id: str = ""
    attempts: int = 0
    retries: list[RetryReason] = field(default_factory=list)
    disconnect: Phase | None = None
    duration_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    output_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    events: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    policy: str = ""
    decision: str = ""
    stages: dict[Stage, float] = field(default_factory=dict)
    error_code: str = ""
    detail: str = ""
    body_s: float | None = None
    """From the first byte of the request to the last."""
    first_byte_s: float | None = None
    """From the request's handing over to the last worker to the first byte of its answer's body."""
    token_events: int = 0
    """Token-bearing events of the stream; the first and the last one are `tokens_s` apart."""
    tokens_s: float = 0.0
    output_tokens_estimated: bool = False
    """No usage came: `output_tokens` are the token-bearing events, which is the least it can have been."""
    body: bytes = b""
    """The beginning of the request's body, only where the configuration wants prompts in the log."""
    rejection: str = ""
    """With outcome REJECTED: the `RejectionReason`, where the error's code is another word."""
