"""What is kept of one exchange: the one source of its metrics and of its line in the log."""

from __future__ import annotations

from gateway.types import Endpoint, Family, Outcome, Phase, RetryReason, Stage


class ExchangeRecord:
    """
    What one exchange was, filled in by the coroutine that owns it and handed over once, at its end.

    It is the only source of the per-request metrics and of the canonical log line, so that the two agree. Times are
    seconds; a value that was never reached stays None. `model` is a configured name, or "" when the request named none
    we know (the label is then `other`). `tenant` is the name of the API key, "" for anonymous callers, None when a key
    was refused: such a request is nobody's. `status` is what the client was sent, None when nothing was.
    """

    __slots__ = (
        "attempts",
        "body",
        "body_s",
        "bytes_in",
        "bytes_out",
        "cached_tokens",
        "decision",
        "detail",
        "disconnect",
        "duration_s",
        "endpoint",
        "error_code",
        "events",
        "family",
        "finish_reasons",
        "first_byte_s",
        "model",
        "outcome",
        "output_tokens",
        "output_tokens_estimated",
        "policy",
        "prompt_tokens",
        "rejection",
        "request_id",
        "retries",
        "stages",
        "started_at_s",
        "status",
        "stream",
        "tenant",
        "token_events",
        "tokens_s",
        "tpot_s",
        "ttft_s",
        "upstream_request_id",
        "worker",
    )

    def __init__(  # spelt out: compiled, a dataclass's own is the one thing that stays interpreted
        self,
        request_id: str,
        endpoint: Endpoint,
        family: Family,
        started_at_s: float,
        model: str = "",
        tenant: str | None = "",
        stream: bool = False,
        status: int | None = None,
        outcome: Outcome = Outcome.INTERNAL,
        worker: str = "",
        upstream_request_id: str = "",
        attempts: int = 0,
        retries: list[RetryReason] | None = None,
        disconnect: Phase | None = None,
        duration_s: float | None = None,
        ttft_s: float | None = None,
        tpot_s: float | None = None,
        prompt_tokens: int | None = None,
        cached_tokens: int | None = None,
        output_tokens: int | None = None,
        finish_reasons: tuple[str, ...] = (),
        events: int = 0,
        bytes_in: int = 0,
        bytes_out: int = 0,
        policy: str = "",
        decision: str = "",
        stages: dict[Stage, float] | None = None,
        error_code: str = "",
        detail: str = "",
        body_s: float | None = None,
        first_byte_s: float | None = None,
        token_events: int = 0,
        tokens_s: float = 0.0,
        output_tokens_estimated: bool = False,
        body: bytes = b"",
        rejection: str = "",
    ) -> None:
        self.request_id = request_id
        self.endpoint = endpoint
        self.family = family
        self.started_at_s = started_at_s
        self.model = model
        self.tenant = tenant
        self.stream = stream
        self.status = status
        self.outcome = outcome
        self.worker = worker
        self.upstream_request_id = upstream_request_id
        self.attempts = attempts
        self.retries: list[RetryReason] = [] if retries is None else retries
        self.disconnect = disconnect
        self.duration_s = duration_s
        self.ttft_s = ttft_s
        self.tpot_s = tpot_s
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = cached_tokens
        self.output_tokens = output_tokens
        self.finish_reasons = finish_reasons
        self.events = events
        self.bytes_in = bytes_in
        self.bytes_out = bytes_out
        self.policy = policy
        self.decision = decision
        self.stages: dict[Stage, float] = {} if stages is None else stages
        self.error_code = error_code
        self.detail = detail
        self.body_s = body_s
        """From the first byte of the request to the last."""
        self.first_byte_s = first_byte_s
        """From the request's handing over to the last worker to the first byte of its answer's body."""
        self.token_events = token_events
        """Token-bearing events of the stream; the first and the last one are `tokens_s` apart."""
        self.tokens_s = tokens_s
        self.output_tokens_estimated = output_tokens_estimated
        """No usage came: `output_tokens` are the token-bearing events, which is the least it can have been."""
        self.body = body
        """The beginning of the request's body, only where the configuration wants prompts in the log."""
        self.rejection = rejection
        """With outcome REJECTED: the `RejectionReason`, where the error's code is another word."""
