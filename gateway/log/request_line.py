"""The canonical line of an exchange: what it was, how it ended, how long each part took (docs/logs.md)."""

from __future__ import annotations

from typing import Final

from msgspec import UNSET, UnsetType

from gateway.log.line_payload import RequestLine, line_fields
from gateway.record import ExchangeRecord
from gateway.types import Stage

# Looking up a member of an enumeration is a call of a function; these are used for every request.
_PARSE: Final = Stage.PARSE
_ADMISSION: Final = Stage.ADMISSION
_ROUTING: Final = Stage.ROUTING
_CONNECT: Final = Stage.CONNECT
_RELAY: Final = Stage.RELAY


def request_line(record: ExchangeRecord) -> RequestLine:
    """
    An exchange's canonical line; what was never reached is left out.

    Times are in milliseconds, to the microsecond: the histograms count the very same values.
    """
    stages = record.stages
    # Spelt out, in the order of the fields: a dictionary takes twice as long, and this runs once for every request.
    return RequestLine(
        record.request_id,
        record.endpoint,
        record.model,
        record.outcome,
        record.status,
        record.stream,
        record.bytes_in,
        record.bytes_out,
        record.tenant or UNSET,
        record.worker or UNSET,
        record.upstream_request_id or UNSET,
        record.attempts or UNSET,
        record.policy or UNSET,
        record.decision or UNSET,
        record.events or UNSET,
        record.error_code or UNSET,
        record.rejection or UNSET,
        record.detail or UNSET,
        record.retries or UNSET,
        record.finish_reasons or UNSET,
        True if record.output_tokens_estimated else UNSET,
        UNSET if record.prompt_tokens is None else record.prompt_tokens,
        UNSET if record.cached_tokens is None else record.cached_tokens,
        UNSET if record.output_tokens is None else record.output_tokens,
        UNSET if record.disconnect is None else record.disconnect,
        _milliseconds(record.duration_s),
        _milliseconds(record.body_s),
        _milliseconds(record.first_byte_s),
        _milliseconds(record.ttft_s),
        _milliseconds(record.tpot_s),
        record.token_events or UNSET,
        _milliseconds(record.tokens_s) if record.token_events else UNSET,
        _milliseconds(stages.get(_PARSE)),
        _milliseconds(stages.get(_ADMISSION)),
        _milliseconds(stages.get(_ROUTING)),
        _milliseconds(stages.get(_CONNECT)),
        _milliseconds(stages.get(_RELAY)),
        record.body.decode(errors="replace") if record.body else UNSET,
    )


def request_fields(record: ExchangeRecord) -> dict[str, object]:
    """The line's fields by their names."""
    return line_fields(request_line(record))


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


def _milliseconds(seconds: float | None) -> float | UnsetType:
    """To the microsecond. Cheaper than `round`, whose decimal arithmetic nobody needs here."""
    return UNSET if seconds is None else int(seconds * 1_000_000 + 0.5) / 1000


def _for_people(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
