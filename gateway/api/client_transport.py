"""One request's way around uvicorn's `send`: the client's transport as the relay uses it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, cast

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.proxy.direct import Receive, Send

if TYPE_CHECKING:
    from gateway.api.inline import RequestHead
    from gateway.api.server_protocol import GatewayProtocol


class ClientTransport:
    """
    One request's way around uvicorn's `send` (implements `proxy.direct.DirectTransport`).

    The response must have been started with `send`, and must be ended with it: only the chunks between may be written
    here. uvicorn keeps no state about those, so its own view stays true.

    A claimed request has no cycle of uvicorn's (`head` is all there is of it) until it is continued in a task, in the
    state which its answer has reached by then.
    """

    __slots__ = (
        "_corked",
        "_give_up",
        "_is_closing",
        "_on_gone",
        "_on_writable",
        "_protocol",
        "_started",
        "_write",
        "cycle",
        "head",
        "writer",
    )

    def __init__(self, protocol: GatewayProtocol, head: RequestHead | None = None) -> None:
        self.head = head
        self._started = False
        self._give_up: Callable[[], None] | None = None
        self._protocol = protocol
        self.writer = protocol.writer
        self._write: Callable[[bytes], None] = protocol.transport.write
        self._is_closing: Callable[[], bool] = protocol.transport.is_closing
        self._on_gone: Callable[[], None] | None = None
        self._on_writable: Callable[[], None] | None = None
        self._corked: _Cork | None = None
        self.cycle: RequestResponseCycle | None = None

    @property
    def gone(self) -> bool:
        """True once the client has left or its connection is being closed."""
        cycle = self.cycle
        if cycle is None:
            return self._give_up is None or self._is_closing()
        if self._is_closing():
            # uvicorn hears of it in the loop's next turn; a request that ends before would count as never answered.
            cycle.disconnected = True
        return cycle.disconnected

    @property
    def open_for_chunks(self) -> bool:
        """True iff a chunked response has been started and not ended."""
        cycle = self.cycle
        return (
            cycle is not None
            and cycle.response_started
            and not cycle.response_complete
            and cycle.chunked_encoding is True
            and cycle.scope["method"] != "HEAD"
        )

    @property
    def body_arrived(self) -> bool:
        """True iff the whole request body has been received: reading it will not wait."""
        cycle = self.cycle
        return cycle is not None and not cycle.more_body

    @property
    def claimed(self) -> bool:
        """The request is served without a task."""
        return self._give_up is not None

    def claim(self, give_up: Callable[[], None]) -> None:
        """See `DirectTransport`."""
        self._give_up = give_up

    def give_up(self) -> None:
        """Have the request served by a task from now on, if it is not yet."""
        if self._give_up is not None:
            self._give_up()

    def continue_in_task(self, serve: Callable[[Receive, Send], Coroutine[Any, Any, None]]) -> None:
        """See `DirectTransport`."""
        self._give_up = None
        self._protocol.start_task(self, serve, started=self._started)

    def answer(self, status: int, fields: bytes, body: bytes) -> None:
        """See `DirectTransport`."""
        self._give_up = None
        if not self._is_closing():
            self._write(b"%b%b\r\n%b" % (self._protocol.head_lines(status), fields, body))
        self._protocol.claim_ended()

    def begin(self, status: int, fields: bytes, data: bytes) -> None:
        """See `DirectTransport`."""
        self._started = True
        head = self._protocol.head_lines(status)
        self.writer.write(b"%b%btransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (head, fields, len(data), data))

    def end(self, data: bytes) -> None:
        """See `DirectTransport`."""
        self._give_up = None
        if not self._is_closing():
            self._write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data) if data else b"0\r\n\r\n")
        self._protocol.claim_ended()

    def cork(self) -> None:
        """Collect what the next `send`s write: each write of uvicorn's is a system call of its own."""
        if self.cycle is not None and self._corked is None:
            self._corked = _Cork(self._protocol.transport)
            self.cycle.transport = cast(asyncio.Transport, self._corked)

    def uncork(self) -> None:
        """Write what was collected."""
        corked, self._corked = self._corked, None
        if corked is not None:
            if self.cycle is not None:
                self.cycle.transport = self._protocol.transport
            corked.flush()

    def watch(self, on_gone: Callable[[], None], on_writable: Callable[[], None]) -> None:
        """Call `on_gone` once when the client leaves, `on_writable` whenever its send buffer has drained."""
        self._on_gone = on_gone
        self._on_writable = on_writable
        # A large body, or a second request behind this one, may have stopped the reading that detects a departure.
        self._protocol.flow.resume_reading()

    def unwatch(self) -> None:
        """No more calls."""
        self.writer.on_full = None
        self._on_gone = None
        self._on_writable = None

    def write(self, data: bytes) -> bool:
        """Send `data` (not empty) as one chunk. False when the client's buffer is full: pause until `on_writable`."""
        return self.writer.write(b"%x\r\n%b\r\n" % (len(data), data))

    def abort(self) -> None:
        """Break the connection: what was sent must not look like a complete answer."""
        if self.cycle is not None:
            self.cycle.disconnected = True
        self._protocol.transport.abort()

    def notify_gone(self) -> None:
        """The connection is lost or half-closed."""
        callback, self._on_gone = self._on_gone, None
        if callback is not None:
            callback()

    def notify_writable(self) -> None:
        """The send buffer has drained."""
        if self._on_writable is not None:
            self._on_writable()


class _Cork:
    """Stands in for a transport while a response's first pieces are written. Nothing may be awaited meanwhile."""

    __slots__ = ("_pieces", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Collect `data`."""
        self._pieces.append(data)

    def flush(self) -> None:
        """Write everything that was collected."""
        if self._pieces:
            self._transport.write(b"".join(self._pieces))
            self._pieces = []

    def close(self) -> None:
        """Close the transport behind what was collected."""
        self.flush()
        self._transport.close()

    def is_closing(self) -> bool:
        """See `asyncio.Transport`."""
        return self._transport.is_closing()
