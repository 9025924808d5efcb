"""The canonical line of an exchange: what it was, how it ended, how long each part took (docs/logs.md)."""

from __future__ import annotations

from gateway.types import ExchangeRecord, Stage


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
    for name in _SAID_WHEN_ANY:
        if value := getattr(record, name):
            fields[name] = value
    for name in _SAID_WHEN_KNOWN:
        value = getattr(record, name)
        if value is not None:
            fields[name] = value
    for name, source in _TIMES:
        seconds = getattr(record, source)
        if seconds is not None:
            fields[name] = _milliseconds(seconds)
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


_SAID_WHEN_ANY = (
    "tenant",
    "worker",
    "upstream_request_id",
    "attempts",
    "policy",
    "decision",
    "events",
    "error_code",
    "rejection",
    "detail",
    "retries",
    "finish_reasons",
    "output_tokens_estimated",
)
_SAID_WHEN_KNOWN = ("prompt_tokens", "cached_tokens", "output_tokens", "disconnect")
_TIMES = (
    ("duration_ms", "duration_s"),
    ("body_ms", "body_s"),
    ("first_byte_ms", "first_byte_s"),
    ("ttft_ms", "ttft_s"),
    ("tpot_ms", "tpot_s"),
)
_STAGE_NAMES = {stage: f"{stage}_ms" for stage in Stage}


def _milliseconds(seconds: float) -> float:
    """To the microsecond. Cheaper than `round`, whose decimal arithmetic nobody needs here."""
    return int(seconds * 1_000_000 + 0.5) / 1000


def _for_people(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
