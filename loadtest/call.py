"""One request of a scenario, from its scheduled moment to its entry in the books; the same for Locust and for tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import msgspec

from loadtest.chunks import Chunk, error_message
from loadtest.http_client import Client, Exchange, OnData, TransportFailure, Verdict, build_request
from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome, UnsentReason
from loadtest.scenarios.base import Answer, Request
from loadtest.sse import EventSplitter
from loadtest.stream_timing import StreamTimer
from loadtest.target import Target

_DETAIL_LIMIT = 500


@dataclass(slots=True, eq=False)
class Call:
    """A request in progress. `finish` settles it exactly once, whatever happened. Moments are perf_counter seconds."""

    request: Request
    ledger: Ledger
    started: float
    """The start of the run."""
    scheduled_at: float
    request_id: str = ""
    """Sent as x-request-id, so that a request can be found in the server's logs."""
    session: int = 0
    exchange: Exchange = field(default_factory=Exchange)
    timer: StreamTimer = field(default_factory=StreamTimer)
    text: str = ""

    def perform(self, client: Client, target: Target, api_key: str | None) -> RequestRecord:
        """Sends the request, reads the answer and settles it; a failure is a record, not an exception."""
        request = self.request
        raw = build_request(
            "POST",
            request.path,
            target,
            request.body,
            api_key=request.api_key or api_key,
            request_id=self.request_id,
            headers=request.headers,
        )
        try:
            client.exchange(
                raw, self._on_data() if request.stream else None, self.exchange, leave_after_s=request.cancel_after_s
            )
        except TransportFailure as failure:
            if self.timer.error is None and not self.timer.done:
                return self.finish(failure.outcome, failure.detail)
        return self.finish(*self._outcome())

    def _on_data(self) -> OnData:
        timer, feed = self.timer, EventSplitter().feed
        leave_after = self.request.cancel_after_events

        def on_data(now: float, piece: bytes) -> Verdict:
            for data in feed(piece):
                timer.event(now, data)
            if timer.done:
                return Verdict.COMPLETE
            if leave_after is not None and timer.token_events >= leave_after:
                return Verdict.LEAVE
            return Verdict.MORE

        return on_data

    def _outcome(self) -> tuple[Outcome, str]:
        exchange, timer = self.exchange, self.timer
        if exchange.left and timer.error is None:
            return Outcome.CANCELLED, f"left after {timer.token_events} token events, as the scenario wanted"
        if exchange.status != 200:
            return Outcome.HTTP_STATUS, f"HTTP {exchange.status}: {error_message(bytes(exchange.body))[:_DETAIL_LIMIT]}"
        if self.request.stream:
            self.text = timer.text
            return timer.outcome(body_complete=exchange.body_complete)
        if not exchange.body_complete:
            return Outcome.TRUNCATED, f"the answer ended after {len(exchange.body)} bytes"
        return self._whole_answer(bytes(exchange.body))

    def _whole_answer(self, body: bytes) -> tuple[Outcome, str]:
        """The outcome of a JSON answer; its counts go into the timer, which has seen no events."""
        try:
            chunk = msgspec.json.decode(body, type=Chunk)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            return Outcome.MALFORMED, f"the answer is no JSON object of this API: {error}"
        if (message := chunk.error_text()) is not None:
            return Outcome.IN_BAND_ERROR, message
        if not (chunk.data if self.request.family == "embeddings" else chunk.choices):
            return Outcome.TOKENLESS, "the answer holds neither choices nor embeddings"
        timer = self.timer
        for choice in chunk.choices or ():
            if choice.finish_reason is not None:
                timer.finish_reasons[choice.index] = choice.finish_reason
            if choice.index == 0:
                self.text = str((choice.text if choice.message is None else choice.message.content) or "")
        if chunk.usage is not None:
            timer.usage(chunk.usage)
        if "abort" in timer.finish_reasons.values():
            return Outcome.ABORTED, "finish_reason abort"
        return Outcome.OK, ""

    def answer(self, record: RequestRecord) -> Answer:
        """What the session is told."""
        return Answer(self.text, record.outcome, record)

    def interrupted(self) -> RequestRecord:
        """The run ended before this request did."""
        if self.exchange.sent:
            return self.finish(Outcome.CUT_AT_END, "still running when the time to finish was over")
        return self.finish(Outcome.UNSENT, UnsentReason.RUN_ENDED)

    def finish(self, outcome: Outcome, detail: str) -> RequestRecord:
        """Writes the request into the books."""
        timer, exchange = self.timer, self.exchange
        # A whole answer ended when its last byte was read, not when it had been parsed.
        ended_at = exchange.last_read_at if outcome is Outcome.OK else time.perf_counter()
        record = RequestRecord(
            request_id=self.request_id,
            scheduled_s=self.scheduled_at - self.started,
            outcome=outcome,
            sent_s=self._moment(exchange.sent_at if exchange.sent else None),
            connect_s=exchange.connect_s,
            first_token_s=self._moment(timer.first_at),
            first_visible_s=self._moment(timer.first_visible_at),
            last_token_s=self._moment(timer.last_at),
            ended_s=ended_at - self.started,
            kind=self.request.kind,
            family=self.request.family,
            tenant=self.request.tenant,
            session=self.session,
            status=exchange.status,
            detail=detail,
            gaps_s=timer.gaps,
            chunk_tokens=tuple(timer.chunk_tokens),
            other_choices_s=tuple(at - self.started for at in timer.other_choices),
            token_events=timer.token_events,
            prompt_tokens=timer.prompt_tokens,
            output_tokens=timer.output_tokens,
            cached_tokens=timer.cached_tokens,
            finish_reason=timer.finish_reason,
            server_timing=exchange.headers.get("server-timing"),
        )
        self.ledger.settle(record)
        return record

    def _moment(self, at: float | None) -> float | None:
        return None if at is None else at - self.started
