"""
The client's side of one exchange: its body, its departure, and what it is sent.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType
from typing import Any

from gateway.errors import GatewayError, RequestError
from gateway.proxy.body_budget import UNCOUNTED_BYTES, BodyBudget
from gateway.proxy.direct import DirectTransport, Message, Receive, Send

Headers = list[tuple[bytes, bytes]]


class ClientGone(GatewayError):
    """The client has left; nobody is to be answered."""


class ClientSide:
    """
    One request's client.

    `with client.watched(...)` covers everything between the body's end and the answer's end: in it, a departure is
    told by a callback at once. With a `DirectTransport` that costs nothing; otherwise a task waits for the ASGI
    disconnect message.

    `heads` keeps what requests to workers begin with, by worker, for all requests with the same headers. `attach` gives
    it the ASGI callables; without them only what the transport itself offers can be used.
    """

    __slots__ = (
        "_receive",
        "_send",
        "_transport",
        "bytes_in",
        "bytes_out",
        "complete",
        "direct",
        "headers",
        "heads",
        "held_bytes",
        "method",
        "started",
        "status",
    )

    def __init__(
        self,
        method: str,
        headers: Headers,
        transport: DirectTransport | None,
        *,
        allow_direct: bool,
        heads: dict[tuple[str, str], bytes] | None = None,
    ) -> None:
        self.heads = heads
        self.method = method
        self.headers = headers
        self._receive: Receive = _unattached
        self._send: Send = _unattached
        self._transport = transport
        self.direct: DirectTransport | None = transport if allow_direct else None
        self.started = False
        self.complete = False
        self.status: int | None = None
        self.bytes_in = 0
        self.bytes_out = 0
        self.held_bytes = 0
        """What the body takes of the budget; the exchange gives it back."""

    def attach(self, receive: Receive, send: Send) -> None:
        """The ASGI callables of this request."""
        self._receive = receive
        self._send = send

    async def read_body(self, limit_bytes: int, stall_s: float, slow_s: float, budget: BodyBudget) -> bytes:
        """
        The whole request body.

        Args:
            limit_bytes: Larger bodies are refused, by their announced length where there is one.
            stall_s: Longest wait for more of the body.
            slow_s: Longest time for all of it.
            budget: Of all bodies together.

        Raises:
            RequestError: 413 too large, 408 too slow, 429 too much at once.
            ClientGone: The client left.
        """
        announced = self._announced_length()
        if announced is not None and announced > limit_bytes:
            raise _too_large(limit_bytes)
        if announced is not None:
            self.hold(announced, budget)
        receive = self._receive
        # A body that has already arrived is taken without a timer: that is nearly every request.
        arrived = self._transport is not None and self._transport.body_arrived
        message = await receive() if arrived else await self._receive_within(receive, stall_s)
        if message["type"] == "http.disconnect":
            raise ClientGone("the client left while sending its request")
        body: bytes = message.get("body", b"")
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
        self.hold(len(body), budget)
        if not message.get("more_body", False):
            self.bytes_in = len(body)
            return body
        pieces = [body]
        size = len(body)
        loop = asyncio.get_running_loop()
        give_up_at = loop.time() + slow_s
        more = True
        while more:
            if size > limit_bytes:
                raise _too_large(limit_bytes)
            message = await self._receive_within(receive, min(stall_s, give_up_at - loop.time()))
            if message["type"] == "http.disconnect":
                raise ClientGone("the client left while sending its request")
            piece = message.get("body", b"")
            more = message.get("more_body", False)
            if piece:
                pieces.append(piece)
                size += len(piece)
                self.bytes_in = size
                self.hold(size, budget)
        if size > limit_bytes:
            raise _too_large(limit_bytes)
        self.bytes_in = size
        return b"".join(pieces)

    def hold(self, size_bytes: int, budget: BodyBudget) -> None:
        """The body is, or becomes, as large as this. Raises Rejected when all of them together are too large."""
        if size_bytes > max(self.held_bytes, UNCOUNTED_BYTES):
            budget.take(size_bytes - self.held_bytes)
            self.held_bytes = size_bytes

    @staticmethod
    async def _receive_within(receive: Receive, limit_s: float) -> Message:
        try:
            async with asyncio.timeout(limit_s):
                return await receive()
        except TimeoutError:
            raise RequestError(
                408, "The request body did not arrive in time.", code="request_timeout", should_retry=True
            ) from None

    def _announced_length(self) -> int | None:
        for name, value in self.headers:
            if name == b"content-length":
                return int(value) if value.isdigit() else None
        return None

    @property
    def expects_continue(self) -> bool:
        """True iff the client waits for `100 Continue` before it sends its body."""
        return any(name == b"expect" for name, _ in self.headers)

    def watched(self, on_gone: Callable[[], None], on_writable: Callable[[], None]) -> Watch:
        """Context in which `on_gone` is called once when the client leaves."""
        return Watch(self.direct, self._receive, on_gone, on_writable)

    def break_off(self) -> None:
        """
        End a started answer so that it cannot be taken for a complete one.

        Where the server offers no transport, returning without the last body message makes it close the connection.
        """
        if self._transport is not None:
            self._transport.abort()

    def sent_start(self, status: int, size: int, *, complete: bool) -> None:
        """An answer has been started or sent past `start`, with so many bytes of its body."""
        self.started = True
        self.status = status
        self.bytes_out += size
        self.complete = complete

    def sent_end(self, size: int) -> None:
        """A started answer has been ended past `finish`, with so many last bytes of its body."""
        self.bytes_out += size
        self.complete = True

    async def start(self, status: int, headers: Headers) -> None:
        """Send status and headers."""
        self.started = True
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        """Send a whole answer, in one write where the server allows it."""
        direct = self.direct
        if direct is not None:
            direct.cork()
        try:
            await self.start(status, headers)
            await self.finish(body)
        finally:
            if direct is not None:
                direct.uncork()

    async def begin(self, status: int, headers: Headers, data: bytes) -> None:
        """Start an answer with the first piece of its body, in one write where the server allows it."""
        direct = self.direct
        if direct is not None:
            direct.cork()
        try:
            await self.start(status, headers)
            await self.write(data)
        finally:
            if direct is not None:
                direct.uncork()

    async def write(self, data: bytes) -> None:
        """Send a piece of the body; waits while the client's buffer is full."""
        self.bytes_out += len(data)
        await self._send({"type": "http.response.body", "body": data, "more_body": True})

    async def finish(self, data: bytes = b"") -> None:
        """Send the last piece and end the answer."""
        self.bytes_out += len(data)
        self.complete = True
        await self._send({"type": "http.response.body", "body": data, "more_body": False})


class Watch:
    """Watches for the client's departure while entered."""

    __slots__ = ("_direct", "_on_gone", "_on_writable", "_receive", "_task")

    def __init__(
        self,
        direct: DirectTransport | None,
        receive: Receive,
        on_gone: Callable[[], None],
        on_writable: Callable[[], None],
    ) -> None:
        self._direct = direct
        self._receive = receive
        self._on_gone = on_gone
        self._on_writable = on_writable
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Watch:
        if self._direct is not None:
            self._direct.watch(self._on_gone, self._on_writable)
            if self._direct.gone:
                self._on_gone()
        else:
            self._task = asyncio.get_running_loop().create_task(self._wait())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._direct is not None:
            self._direct.unwatch()
        elif self._task is not None:
            self._task.cancel()
            self._task = None

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._on_gone()


async def _unattached(message: Message | None = None) -> Any:
    raise RuntimeError("this request has not been given to a task yet: it has neither receive nor send")


def _too_large(limit_bytes: int) -> RequestError:
    return RequestError(
        413, f"The request body is larger than {limit_bytes} bytes.", code="request_too_large", should_retry=False
    )
