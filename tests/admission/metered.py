"""A worker that does nothing but take its time, and knows at every moment how many requests it has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

BODY = b'{"id":"x","object":"chat.completion","choices":[],"usage":{"prompt_tokens":1,"completion_tokens":1}}'
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(BODY), BODY)


class MeteredWorker:
    """
    Speaks just enough HTTP. A request counts from its last byte to before its answer's first.

    Args:
        service_s: How long the next request takes.
    """

    def __init__(self, service_s: Callable[[], float]) -> None:
        self._service_s = service_s
        self._server: asyncio.Server | None = None
        self._area = 0.0
        self._since_s = self._began_s = 0.0
        self.port = 0
        self.running = 0
        self.most = 0
        self.served = 0

    async def __aenter__(self) -> MeteredWorker:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    def begin(self) -> float:
        """A request is complete; returns how long it takes."""
        self._moved(1)
        self.most = max(self.most, self.running)
        return self._service_s()

    def end(self, *, served: bool) -> None:
        """Its answer goes out, or its connection has gone."""
        self._moved(-1)
        self.served += served

    def forget(self) -> None:
        """Measure from here on."""
        self.most, self.served, self._area = self.running, 0, 0.0
        self._since_s = self._began_s = asyncio.get_running_loop().time()

    @property
    def mean(self) -> float:
        """Requests it had on average since `forget`."""
        self._moved(0)
        return self._area / (self._since_s - self._began_s)

    def _moved(self, by: int) -> None:
        now_s = asyncio.get_running_loop().time()
        self._area += self.running * (now_s - self._since_s)
        self._since_s = now_s
        self.running += by


class _Connection(asyncio.Protocol):
    def __init__(self, worker: MeteredWorker) -> None:
        self._worker = worker
        self._buffer = b""
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._worker.end(served=False)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
        if len(body) >= length:
            self._buffer = body[length:]
            self._timer = asyncio.get_running_loop().call_later(self._worker.begin(), self._answer)

    def _answer(self) -> None:
        self._timer = None
        self._worker.end(served=True)
        self._transport.write(ANSWER)
