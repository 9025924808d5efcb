"""One streamed chat request, from scheduling to its entry in the books; the same for Locust and for tests."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from loadtest.http_client import Client, Exchange, TransportFailure, build_request
from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome, UnsentReason
from loadtest.sse import EventSplitter
from loadtest.stream_timing import StreamTimer
from loadtest.target import Target

CHAT_PATH = "/v1/chat/completions"


@dataclass(slots=True)
class ChatCall:
    """A request in progress. `finish` settles it exactly once, whatever happened."""

    ledger: Ledger
    started: float
    """perf_counter at the start of the run."""
    request_id: str = ""
    """Sent as x-request-id, so that a request can be found in the server's logs."""
    scheduled_at: float = field(default_factory=time.perf_counter)
    exchange: Exchange = field(default_factory=Exchange)
    timer: StreamTimer = field(default_factory=StreamTimer)

    def perform(self, client: Client, target: Target, body: bytes, api_key: str | None) -> RequestRecord:
        """Sends the request, reads the answer and settles it; a failure is a record, not an exception."""
        splitter = EventSplitter()

        def on_data(now: float, piece: bytes) -> bool:
            for data in splitter.feed(piece):
                self.timer.event(now, data)
            return self.timer.done

        try:
            request = build_request("POST", CHAT_PATH, target, body, api_key=api_key, request_id=self.request_id)
            client.exchange(request, on_data, self.exchange)
        except TransportFailure as failure:
            if self.timer.error is None and not self.timer.done:
                return self.finish(failure.outcome, failure.detail)
        if self.exchange.status != 200:
            text = self.exchange.body.decode(errors="replace")[:500]
            return self.finish(Outcome.HTTP_STATUS, f"HTTP {self.exchange.status}: {text}")
        return self.finish(*self.timer.outcome(body_complete=self.exchange.body_complete))

    def interrupted(self) -> RequestRecord | None:
        """The run ended before this request did; None when it had not been sent yet."""
        if self.exchange.sent:
            return self.finish(Outcome.CUT_AT_END, "still running when the time to finish was over")
        self.finish(Outcome.UNSENT, UnsentReason.RUN_ENDED)
        return None

    def finish(self, outcome: Outcome, detail: str) -> RequestRecord:
        """Writes the request into the books."""
        timer = self.timer
        record = RequestRecord(
            request_id=self.request_id,
            scheduled_s=self.scheduled_at - self.started,
            outcome=outcome,
            sent_s=self._moment(self.exchange.sent_at if self.exchange.sent else None),
            first_token_s=self._moment(timer.first_at),
            first_visible_s=self._moment(timer.first_visible_at),
            last_token_s=self._moment(timer.last_at),
            ended_s=time.perf_counter() - self.started,
            status=self.exchange.status,
            detail=detail,
            gaps_s=tuple(timer.gaps),
            token_events=timer.token_events,
            prompt_tokens=timer.prompt_tokens,
            output_tokens=timer.output_tokens,
            cached_tokens=timer.cached_tokens,
        )
        self.ledger.settle(record)
        return record

    def _moment(self, at: float | None) -> float | None:
        return None if at is None else at - self.started
