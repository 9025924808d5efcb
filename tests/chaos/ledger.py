"""What the clients of a storm asked and saw, and the judgement against what the gateway recorded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from gateway.record import ExchangeRecord
from gateway.types import Outcome

_MARKERS = {
    "/v1/chat/completions": b"data: [DONE]\n\n",
    "/v1/completions": b"data: [DONE]\n\n",
    "/v1/responses": b"event: response.completed\n",
    "/v1/messages": b"event: message_stop\n",
}
GARBAGE = "garbage"
"""Beginning of the request ids of what is no proper request."""
_ERROR_EVENTS = (b'data: {"error"', b"event: error\n", b'"object":"error"')


@dataclass(slots=True, eq=False)
class Asked:
    """
    One request to an inference route.

    `left` means that the client went away before the answer's end: then the gateway may never have heard of the
    request. `cut_off` that the gateway closed the connection before this request's turn came.
    """

    number: str
    path: str
    stream: bool
    behaviour: str
    left: bool = False
    left_at: float | None = None
    cut_off: bool = False
    status: int = 0
    complete: bool = False
    succeeded: bool = False
    tail: bytes = b""

    def saw(self, status: int, complete: bool, body: bytes, *, events: bool) -> None:
        """Note an answer as far as it came; `events` says that it is a stream of them."""
        self.status, self.complete = status, complete
        ends_well = not events or (_MARKERS[self.path] in body and not any(error in body for error in _ERROR_EVENTS))
        self.succeeded = status == 200 and complete and ends_well
        self.tail = body[-300:]


def verdicts(asked: Iterable[Asked], records: Iterable[ExchangeRecord]) -> list[str]:
    """Every contradiction between what clients saw and what was recorded; empty when the books agree."""
    by_number = {one.number: one for one in asked}
    found: list[str] = []
    seen: Counter[str] = Counter()
    for record in records:
        if record.request_id.startswith(GARBAGE):
            if record.outcome not in (Outcome.CLIENT_ERROR, Outcome.CLIENT_CLOSED):
                found.append(f"garbage: recorded as {record.outcome} ({record.detail})")
            continue
        seen[record.request_id] += 1
        one = by_number.get(record.request_id)
        said = f"{record.outcome} ({record.detail or record.disconnect}), status {record.status}"
        if one is None:
            found.append(f"{record.request_id}: recorded as {said}, and nobody sent it")
        elif record.outcome is Outcome.INTERNAL:
            found.append(f"{one}: a defect of the gateway: {said}")
        elif not one.left and (
            one.succeeded != (record.outcome is Outcome.OK) or (one.status != record.status and not one.cut_off)
        ):
            found.append(f"{one}: recorded as {said}")
    for number, one in by_number.items():
        if seen[number] > 1:
            found.append(f"{one}: recorded {seen[number]} times")
        elif not seen[number] and not one.left and not one.cut_off:
            found.append(f"{one}: never recorded")
    return found
