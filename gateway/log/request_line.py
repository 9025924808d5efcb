"""The canonical line of an exchange: what it was, how it ended, how long each part took (docs/logs.md)."""

from __future__ import annotations

from typing import Final

from gateway.record import ExchangeRecord
from gateway.types import Stage


def request_fields(record: ExchangeRecord) -> dict[str, object]:
    """
    The fields of an exchange's canonical line; those that were never reached are left out.

    Times are in milliseconds, to the microsecond: the histograms count the very same values.
    """
    fields: dict[str, object] = {
        "request_id": record.request_id,
        "endpoint": record.endpoint,
        "model": record.model,
        "outcome": record.outcome,
        "status": record.status,
        "stream": record.stream,
        "bytes_in": record.bytes_in,
        "bytes_out": record.bytes_out,
    }
    # Spelt out: a loop over names takes twice as long, and this runs once for every request.
    if record.tenant:
        fields["tenant"] = record.tenant
    if record.worker:
        fields["worker"] = record.worker
    if record.upstream_request_id:
        fields["upstream_request_id"] = record.upstream_request_id
    if record.attempts:
        fields["attempts"] = record.attempts
    if record.policy:
        fields["policy"] = record.policy
    if record.decision:
        fields["decision"] = record.decision
    if record.events:
        fields["events"] = record.events
    if record.error_code:
        fields["error_code"] = record.error_code
    if record.rejection:
        fields["rejection"] = record.rejection
    if record.detail:
        fields["detail"] = record.detail
    if record.retries:
        fields["retries"] = record.retries
    if record.finish_reasons:
        fields["finish_reasons"] = record.finish_reasons
    if record.output_tokens_estimated:
        fields["output_tokens_estimated"] = True
    if record.prompt_tokens is not None:
        fields["prompt_tokens"] = record.prompt_tokens
    if record.cached_tokens is not None:
        fields["cached_tokens"] = record.cached_tokens
    if record.output_tokens is not None:
        fields["output_tokens"] = record.output_tokens
    if record.disconnect is not None:
        fields["disconnect"] = record.disconnect
    if record.duration_s is not None:
        fields["duration_ms"] = _milliseconds(record.duration_s)
    if record.body_s is not None:
        fields["body_ms"] = _milliseconds(record.body_s)
    if record.first_byte_s is not None:
        fields["first_byte_ms"] = _milliseconds(record.first_byte_s)
    if record.ttft_s is not None:
        fields["ttft_ms"] = _milliseconds(record.ttft_s)
    if record.tpot_s is not None:
        fields["tpot_ms"] = _milliseconds(record.tpot_s)
    if record.token_events:
        fields["token_events"] = record.token_events
        fields["tokens_ms"] = _milliseconds(record.tokens_s)
    for stage, spent_s in record.stages.items():
        fields[_STAGE_NAMES[stage]] = _milliseconds(spent_s)
    if record.body:
        fields["body"] = record.body.decode(errors="replace")
    return fields


def readable(record: ExchangeRecord) -> str:
    """The same exchange for a person who watches a terminal: what matters, in the order in which it is looked for."""
    said = [str(record.status or "---"), record.outcome, record.endpoint, record.model or "(no model)"]
    if record.worker:
        said.append(f"on {record.worker}")
    if record.duration_s is not None:
        said.append(f"in {_for_people(record.duration_s)}")
    details = []
    if record.ttft_s is not None:
        details.append(f"first token {_for_people(record.ttft_s)}")
    if record.tpot_s is not None:
        details.append(f"{_for_people(record.tpot_s)} per token")
    if record.prompt_tokens is not None or record.output_tokens is not None:
        details.append(f"tokens {record.prompt_tokens or 0} in, {record.output_tokens or 0} out")
    if record.retries:
        details.append(f"tried again after {', '.join(record.retries)}")
    if record.disconnect is not None:
        details.append(f"client left: {record.disconnect}")
    if record.error_code:
        details.append(record.error_code)
    if record.detail:
        details.append(record.detail)
    if record.tenant:
        details.append(f"for {record.tenant}")
    return " ".join(said) + "".join(f"; {detail}" for detail in details)


_STAGE_NAMES: Final = {stage: f"{stage}_ms" for stage in Stage}


def _milliseconds(seconds: float) -> float:
    """To the microsecond. Cheaper than `round`, whose decimal arithmetic nobody needs here."""
    return int(seconds * 1_000_000 + 0.5) / 1000


def _for_people(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
