"""
The fast path: chunks of a stream written to the client's transport from the upstream's read callback.

A server that supports it offers a `DirectTransport` in the ASGI scope; without one, or with the switch off, the
portable `send` path is taken and everything else is the same.
"""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, Protocol, cast

EXTENSION = "gateway.transport"


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

    def write_framed(self, data: bytes) -> bool:
        """As `write`, for `data` that consists of whole chunks already."""
        ...

    def abort(self) -> None:
        """Break the connection: what was sent must not look like a complete answer."""
        ...


def direct_transport(scope: MutableMapping[str, Any]) -> DirectTransport | None:
    """The transport that the server offers for this request; None when it offers none."""
    extensions = scope.get("extensions")
    return cast("DirectTransport | None", extensions.get(EXTENSION)) if extensions else None
