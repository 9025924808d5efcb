"""
The fast path: chunks of a stream written to the client's transport from the upstream's read callback.

A server that supports it offers a `DirectTransport` in the ASGI scope; without one, or with the switch off, the
portable `send` path is taken and everything else is the same.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Protocol, cast

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Scope = MutableMapping[str, Any]

EXTENSION = "gateway.transport"


class Writable(Protocol):
    """A transport, as far as it is written to."""

    def write(self, data: bytes) -> object:
        """Send `data`. Raises RuntimeError when it is closed."""
        ...


class ChunkWriter:
    """
    A client's connection as the relay writes to it; its owner says when the client's buffer is full, and when not.

    Attributes:
        transport: The client's.
        paused: The client's buffer is full.
        on_full: Called when it becomes so, which may be from within the transport's `write`.
    """

    __slots__ = ("on_full", "paused", "transport")

    def __init__(self, transport: Writable) -> None:
        self.transport = transport
        self.paused = False
        self.on_full: Callable[[], None] | None = None

    def full(self) -> None:
        """The client's buffer has become full."""
        self.paused = True
        if self.on_full is not None:
            self.on_full()

    def drained(self) -> None:
        """The client's buffer has room again."""
        self.paused = False

    def write(self, data: bytes) -> bool:
        """Send `data`, whole chunks. False when the client's buffer is full: pause until `on_writable`."""
        try:
            self.transport.write(data)
        except RuntimeError:
            # Closed: the exchange has been told and ends soon; this read of its worker came in the same turn of the
            # loop.
            return True
        return not self.paused


class DirectTransport(Protocol):
    """
    A client's transport, valid for one request.

    The response is started and ended with `send`; between, chunks may be written here.
    """

    @property
    def gone(self) -> bool:
        """True once the client has left."""
        ...

    @property
    def open_for_chunks(self) -> bool:
        """True iff a chunked response has been started and not ended."""
        ...

    @property
    def body_arrived(self) -> bool:
        """True iff the whole request body has been received: reading it will not wait."""
        ...

    def claim(self, give_up: Callable[[], None]) -> None:
        """
        The request is served without a task for now, by `answer` or `begin` instead of `send`; `give_up`, which must
        call `continue_in_task`, is called when the server cannot have that any longer.
        """
        ...

    def continue_in_task(self, serve: Callable[[Receive, Send], Coroutine[Any, Any, None]]) -> None:
        """End the claim: a task of the server's goes on with the request, which may have been begun."""
        ...

    def answer(self, status: int, fields: bytes, body: bytes) -> None:
        """Send a whole answer to a claimed request and end the claim; `fields` are header lines, with a length."""
        ...

    def begin(self, status: int, fields: bytes, data: bytes) -> None:
        """Start a chunked answer to a claimed request with the first piece of its body."""
        ...

    def end(self, data: bytes) -> None:
        """End the answer that was started with `begin`, with the last piece of its body, and the claim."""
        ...

    def cork(self) -> None:
        """Collect what the next `send`s write, so that it leaves in one piece."""
        ...

    def uncork(self) -> None:
        """Write what was collected. Harmless without `cork`."""
        ...

    def watch(self, on_gone: Callable[[], None], on_writable: Callable[[], None]) -> None:
        """Call `on_gone` once when the client leaves, `on_writable` whenever its send buffer has drained."""
        ...

    def unwatch(self) -> None:
        """No more calls."""
        ...

    def write(self, data: bytes) -> bool:
        """Send `data` as one chunk. False when the client's buffer is full: pause until `on_writable`."""
        ...

    @property
    def writer(self) -> ChunkWriter:
        """For data that consists of whole chunks already."""
        ...

    def abort(self) -> None:
        """Break the connection: what was sent must not look like a complete answer."""
        ...


def direct_transport(scope: MutableMapping[str, Any]) -> DirectTransport | None:
    """The transport that the server offers for this request; None when it offers none."""
    extensions = scope.get("extensions")
    return cast("DirectTransport | None", extensions.get(EXTENSION)) if extensions else None
