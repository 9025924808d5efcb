"""
One worker's answer to one attempt, as it arrives.

Until the exchange has decided to pass it on, everything is held here: an error in the first event can still become a
status or another attempt. Afterwards only whole events are passed on, so that an error told by the gateway never lands
inside an event of the worker; an event longer than `PARTIAL_LIMIT` is passed on in pieces all the same.

Memory of one stalled stream: at most `HOLD_LIMIT` + `PARTIAL_LIMIT` here, one read of the socket (256 KiB with uvloop)
beyond each, and 64 KiB plus one such read in the client's transport: under 1 MiB, then the worker is no longer read.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from time import monotonic
from typing import Final

from gateway.errors import UpstreamError
from gateway.gaps import TokenGaps
from gateway.protocol.known_event import known_events
from gateway.protocol.observer import StreamObserver, UsageFilter
from gateway.proxy.chunks import chunk_at, whole_chunks
from gateway.proxy.cutting import after_last_blank_line, events_before_error
from gateway.proxy.direct import DirectTransport, Writable
from gateway.proxy.interfaces import Lease
from gateway.proxy.known_head import Headers
from gateway.proxy.processor_yield import ProcessorYield
from gateway.proxy.upstream import Shortcut, UpstreamConnection
from gateway.types import Family

HOLD_LIMIT: Final = 64 * 1024
"""Bytes of a stream held for a client that takes them slowly, or while its first event is incomplete."""
PARTIAL_LIMIT: Final = 64 * 1024
"""Longest event that is passed on only as a whole."""
PLAIN_HOLD_LIMIT: Final = 256 * 1024
"""A non-streamed answer up to this size is inspected before its status is sent."""
ERROR_BODY_LIMIT: Final = 64 * 1024
"""So much of a worker's error body is read."""
LESSONS: Final = 3
"""So often an event that is not like the one before is learnt from; a stream whose events all differ gains nothing."""
PROGRESS_EVERY_S: Final = 0.25
"""A lease is told of progress so often; the load report goes out once a second."""

# A constant is no look-up by name, which every event would make.
_now: Final = monotonic
_DONE_LINE: Final = re.compile(rb"data: ?\[DONE\][\r\n]*\Z")


class Answer(Shortcut):
    """
    The sink of one attempt's response.

    `wake` is called whenever the exchange may have something to do. With a client's transport in `direct`, complete
    events go straight to it from here and the exchange sleeps until the end.
    """

    __slots__ = (
        "_after_text",
        "_before_text",
        "_client",
        "_direct",
        "_gaps",
        "_lease",
        "_lessons",
        "_partial",
        "_partial_bytes",
        "_passed_end",
        "_plain_events",
        "_processor",
        "_progress_due",
        "_ready",
        "_ready_bytes",
        "_stream_of",
        "_through",
        "_wake",
        "complete",
        "connection",
        "content_length",
        "direct_bytes",
        "done",
        "encoded",
        "error",
        "filter",
        "first_byte_at",
        "first_token_at",
        "headers",
        "last_at",
        "last_token_at",
        "last_write_at",
        "mid_event",
        "observer",
        "overflowed",
        "stalled_at",
        "status",
        "streamed",
        "tokens",
        "untold_error",
    )

    def __init__(
        self,
        connection: UpstreamConnection,
        lease: Lease,
        gaps: TokenGaps,
        processor: ProcessorYield,
        wake: Callable[[], None],
    ) -> None:
        # First, and so next to each other in memory, what every event looks at: with hundreds of streams, each object
        # and each line of 64 bytes that an event touches has to be fetched from far away.
        self._through = False
        self._before_text = b""
        self._after_text = b""
        self._client: Writable | None = None
        self._gaps = gaps
        self._processor = processor
        self._plain_events = 0
        self.tokens = 0
        self.direct_bytes = 0
        self.last_token_at = 0.0
        self.last_at = 0.0
        self.last_write_at = 0.0
        self._progress_due = 0.0
        self.connection = connection
        self._lease = lease
        self._wake = wake
        self._direct: DirectTransport | None = None
        self._ready: list[bytes] = []
        self._ready_bytes = 0
        self._partial: list[bytes] = []
        self._partial_bytes = 0
        self._passed_end = b""
        self._lessons = LESSONS
        self._stream_of: tuple[Family, int, bool] | None = None
        self.status = 0
        self.headers: Headers = []
        self.content_length: int | None = None
        self.streamed = False
        self.encoded = False
        self.observer: StreamObserver | None = None
        self.filter: UsageFilter | None = None
        self.complete = False
        self.done = False
        self.overflowed = False
        self.untold_error = False
        self.error: UpstreamError | None = None
        self.mid_event = False
        self.first_byte_at: float | None = None
        self.first_token_at: float | None = None
        self.stalled_at: float | None = None

    # --- what the exchange asks -----------------------------------------------------------------------------------

    def has_head(self) -> bool:
        """Status and headers are known, or never will be."""
        return self.status != 0 or self.error is not None

    def first_event_known(self) -> bool:
        """The first event of a stream is complete, or there is nothing to wait for."""
        return self.over or self.overflowed or self.observer is None or self.events > 0

    @property
    def events(self) -> int:
        """Complete events of a stream so far."""
        observer = self.observer
        return self._plain_events + (0 if observer is None else observer.events)

    @property
    def over(self) -> bool:
        """Nothing more is to come, or nothing more is to be passed on."""
        return self.complete or self.done or self.untold_error or self.error is not None

    def is_over(self) -> bool:
        """`over`, as a condition to wait for."""
        return self.complete or self.done or self.untold_error or self.error is not None

    def failure(self) -> UpstreamError | None:
        """`error` as it is now: a type checker takes what it was before a wait for what it is after it."""
        return self.error

    def has_ended(self) -> bool:
        """The message has ended, properly or not."""
        return self.complete or self.error is not None

    @property
    def writes_directly(self) -> bool:
        """True once `write_directly` was called."""
        return self._direct is not None

    @property
    def lf_due(self) -> bool:
        """The last byte received is a CR, whose LF may be on its way."""
        return bool(self._ready) and self._ready[-1].endswith(b"\r")

    def plain_known(self) -> bool:
        """A non-streamed answer is complete, or too large to be held."""
        return self.complete or self.overflowed or self.error is not None

    def error_body_known(self) -> bool:
        """As much of an error body as is wanted has been read."""
        return self.complete or self.error is not None or self._ready_bytes >= ERROR_BODY_LIMIT

    def has_more(self) -> bool:
        """There is something to pass on or to conclude."""
        return self._ready_bytes > 0 or self.over

    def take(self) -> bytes:
        """What may be passed on now; the worker is read again."""
        ready = self._ready
        if not ready:
            return b""
        data = ready[0] if len(ready) == 1 else b"".join(ready)
        self._ready = []
        self._ready_bytes = 0
        self.connection.resume_reading()
        return data

    def put_back(self, data: bytes) -> None:
        """Undo `take`."""
        self._ready.insert(0, data)
        self._ready_bytes += len(data)

    def begins_with_error(self) -> bool:
        """The very first event, not only one that came in the same read, is an error."""
        observer = self.observer
        if observer is None or observer.error is None or self._stream_of is None:
            return False
        if observer.events == 1 or not self._ready:
            return True
        first = StreamObserver(self._stream_of[0])
        for piece in b"".join(self._ready).splitlines(keepends=True):
            first.feed(piece)
            if first.events:
                break
        return first.error is not None

    def take_rest(self, *, keep_done: bool) -> bytes:
        """
        What remains at the end: complete events, and what follows the terminal marker. Without `keep_done` the marker
        that would make a failed answer look complete is left out.
        """
        if keep_done:
            if self.done:
                if self.filter is not None:
                    self._pass(self.filter.flush())
                self._release_partial()
            # Else the end came without a marker, and half an event with it: nobody reads that, some choke on it.
            return self.take()
        return _DONE_LINE.sub(b"", self.take())

    def write_directly(self, direct: DirectTransport) -> None:
        """From now on complete events go to `direct` as they arrive."""
        self._direct = direct
        writer = direct.writer
        writer.on_full = self._client_full
        self._client = writer.transport
        self.connection.take_shortcut(self)
        if writer.paused:
            self._client_full()
        # The last bytes travel with the terminating chunk, which only `send` writes.
        if not self.over and (data := self.take()):
            self._write(direct, data)

    def stall(self) -> None:
        """The client's buffer is full."""
        self.stalled_at = monotonic()
        self.connection.pause_reading()

    def _client_full(self) -> None:
        """The client's buffer has become full, by whatever was written: the end of the response, too."""
        if not self.is_over():  # else the connection may be somebody else's already
            self.stall()

    def writable(self) -> None:
        """The client's buffer has drained."""
        if self.stalled_at is not None:
            self.stalled_at = None
            self.last_at = monotonic()
            self.connection.resume_reading()

    def heartbeat(self, comment: bytes) -> bool:
        """Write a comment straight to the client, unless it is inside an event. False if it could not be written."""
        direct = self._direct
        if direct is None or self.mid_event or self.stalled_at is not None:
            return False
        self._write(direct, comment)
        return True

    # --- what the connection tells --------------------------------------------------------------------------------

    def observe(self, family: Family, n: int, *, drop_usage: bool) -> None:
        """How to read the body if it turns out to be a stream; call before the head can arrive."""
        self._stream_of = (family, n, drop_usage)

    def on_head(self, status: int, headers: Headers) -> None:
        """See `ResponseSink`."""
        self.status = status
        self.headers = headers
        for name, value in headers:
            if name == b"content-type":
                self.streamed = value[:17].lower() == b"text/event-stream"
            elif name == b"content-encoding":
                self.encoded = value.strip().lower() not in (b"", b"identity")
            elif name == b"content-length" and value.isdigit():
                self.content_length = int(value)
        if status < 200 or status > 299:
            self.streamed = False
        if self.streamed and not self.encoded and self._stream_of is not None:
            family, n, drop_usage = self._stream_of
            self.observer = StreamObserver(family, n)
            if drop_usage:
                self.filter = UsageFilter()
        self.last_at = monotonic()
        self._wake()

    def on_data(self, data: bytes) -> None:
        """See `ResponseSink`."""
        now = monotonic()
        observer = self.observer
        if observer is None:
            self._plain(data, now)
            return
        self._through = False
        events = observer.events
        tokens = observer.feed(data)
        if tokens:
            self._count_tokens(tokens, now)
        boundary = observer.at_boundary
        if (observer.events != events or not boundary) and not self.done:
            # A comment is no progress: a hung worker may still send them. Nor is what follows the terminal marker.
            if self.first_byte_at is None:
                self.first_byte_at = now
            self.last_at = now
        if now > self._progress_due:
            self._progress_due = now + PROGRESS_EVERY_S
            self._lease.progress(now)
        if self.untold_error:
            return
        if observer.error is not None and not observer.error.told:
            data = self._before_error(data)
            self.untold_error = boundary = True
        if self.filter is not None:
            data = self.filter.feed(data)
        direct = self._direct
        if boundary and direct is not None and not observer.done and not self._partial and not self.untold_error:
            # Whole events, a client that is written to from here: the next read may take the short way.
            self._through = observer.takes_plain and (self.filter is None or self.filter.idle)
            if data:
                self.mid_event = False
                self.direct_bytes += len(data)
                self.last_write_at = now
                if not direct.write(data):
                    self.stalled_at = now
                    self.connection.pause_reading()
                self._processor.wrote(monotonic())
            return
        self._pass_whole(data, boundary)
        if observer.done:
            self.done = True
        self._deliver(now)
        # Often the beginning or the end of a stream, which takes as long as ten events: others have waited meanwhile.
        self._processor.wrote(monotonic())

    def pass_through(self, data: bytes) -> bool:
        """
        The hot path's hot path: a read of whole chunks with whole, plain events goes to the client as it came.

        Must leave everything as `on_data` would, or leave all of it alone and return False.
        """
        if not self._through:
            return False
        before, after, client = self._before_text, self._after_text, self._client
        assert client is not None  # or `_through` would not be set
        start, end = chunk_at(data, 0)
        if not end:
            return False
        alone = end + 2 == len(data)
        if alone:
            # One chunk, in which nothing is new but some text: nearly always.
            size = end - start
            tokens = known_events(data, start, end, before, after) if before else 0
            body: bytes | None = None
        else:
            body = whole_chunks(data)
            if body is None:
                return False
            size = len(body)
            tokens = known_events(body, 0, size, before, after) if before else 0
        if tokens:
            self._plain_events += tokens
        else:
            tokens = self._take_plain(data[start:end] if body is None else body)
            if tokens < 0:
                return False
        now = _now()
        if tokens == 1 and self.tokens:
            self._gaps.observe(now - self.last_token_at, now)
            self.last_token_at = now
            self.tokens += 1
        elif tokens:
            self._count_tokens(tokens, now)
        self.last_at = self.last_write_at = now
        if now > self._progress_due:
            self._progress_due = now + PROGRESS_EVERY_S
            self._lease.progress(now)
        self.direct_bytes += size
        try:
            client.write(data)  # and, if that fills the client's buffer, `_client_full` is called
        except RuntimeError:
            # Closed: the exchange has been told and ends soon; this read of its worker came in the same turn of the
            # loop.
            return True
        self._processor.wrote(now)
        return True

    def _take_plain(self, body: bytes) -> int:
        """As `StreamObserver.take_plain`; a single event tells what the next ones have in common with it."""
        observer = self.observer
        assert observer is not None  # or `_through` would not be set
        if not self._lessons or body.find(b"\n") != len(body) - 2:
            return observer.take_plain(body)
        known = self.connection.known_events
        around = known.around_text(body)
        if around is not None:
            tokens = 1
            self._plain_events += 1
        else:
            tokens = observer.take_plain(body)
            if tokens != 1:
                return tokens
            around = known.learn(body)
        self._lessons -= 1
        if around is not None:
            self._before_text, self._after_text = around
        return tokens

    def _count_tokens(self, tokens: int, now: float) -> None:
        if self.first_token_at is None:
            self.first_token_at = now
        else:
            self._gaps.observe(now - self.last_token_at, now)
        for _ in range(tokens - 1):
            self._gaps.observe(0.0, now)
        self.last_token_at = now
        self.tokens += tokens

    def on_complete(self) -> None:
        """See `ResponseSink`."""
        self.complete = True
        self._wake()

    def on_failed(self, error: UpstreamError) -> None:
        """See `ResponseSink`."""
        self.error = error
        self._wake()

    # --- passing on -----------------------------------------------------------------------------------------------

    def _plain(self, data: bytes, now: float) -> None:
        if self.first_byte_at is None:
            self.first_byte_at = now
        self.last_at = now
        self._pass(data)
        if now > self._progress_due:
            self._progress_due = now + PROGRESS_EVERY_S
            self._lease.progress(now)
        limit = HOLD_LIMIT if self.streamed else PLAIN_HOLD_LIMIT
        if self._ready_bytes > limit:
            self.overflowed = True
            self.connection.pause_reading()
        if self.streamed or self.overflowed or self.status > 299:
            self._wake()

    def _pass_whole(self, data: bytes, boundary: bool) -> None:
        """Queue what completes events; keep back the beginning of an event."""
        if boundary:
            self._release_partial()
            self._pass(data)
            self.mid_event = False
            return
        if not data:
            return
        cut = self._last_boundary(data)
        if self.mid_event and not cut:
            self._pass(data)
            self._passed_end = (self._passed_end + data)[-3:]
            return
        if cut:
            self._release_partial()
            self._pass(data[:cut])
            data = data[cut:]
            self.mid_event = False
        if data:
            self._partial.append(data)
            self._partial_bytes += len(data)
            if self._partial_bytes > PARTIAL_LIMIT:
                self._passed_end = data[-3:]
                self._release_partial()
                self.mid_event = True
                self.overflowed = True

    def _before_error(self, data: bytes) -> bytes:
        """
        Of what has not been passed on, the events before the error that clients would not recognise; that and what
        follows is dropped.
        """
        assert self._stream_of is not None
        begun = b"".join(self._partial)
        self._partial = []
        self._partial_bytes = 0
        if self.filter is not None:
            begun += self.filter.flush()
        return events_before_error(begun + data, self._stream_of[0])

    def _last_boundary(self, data: bytes) -> int:
        """Position behind the last blank line in `data` (0: none), also one that began in the bytes kept back."""
        before = self._passed_end if self.mid_event else self._partial[-1][-3:] if self._partial else b""
        end = after_last_blank_line(before + data)
        return max(0, end - len(before))

    def _release_partial(self) -> None:
        if self._partial:
            self._ready += self._partial
            self._ready_bytes += self._partial_bytes
            self._partial = []
            self._partial_bytes = 0

    def _pass(self, data: bytes) -> None:
        if data:
            self._ready.append(data)
            self._ready_bytes += len(data)

    def _deliver(self, now: float) -> None:
        direct = self._direct
        if direct is not None and not self.over:
            data = self.take()
            if data:
                self._write(direct, data)
            return
        if self._ready_bytes > HOLD_LIMIT and not self.over:
            self.overflowed = True
            self.connection.pause_reading()
        self._wake()

    def _write(self, direct: DirectTransport, data: bytes) -> None:
        self.last_write_at = monotonic()
        self.direct_bytes += len(data)
        if not direct.write(data):
            self.stalled_at = self.last_write_at
            self.connection.pause_reading()
