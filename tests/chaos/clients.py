"""
Clients at their worst, every choice drawn from the seed and the client's number.

A client takes numbers from a common supply until it is used up, each number one request to an inference route; what is
none (garbage, HEAD, other routes) comes on top.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

from tests.chaos.ledger import Asked
from tests.proxy.raw_client import Answer, RawConnection, connect, post, request

PATHS = (
    *("/v1/chat/completions", "/v1/chat/completions", "/v1/chat/completions", "/v1/completions"),
    *("/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/messages/count_tokens"),
)
NEVER_STREAMED = ("/v1/embeddings", "/v1/messages/count_tokens")
BROKEN = (asyncio.IncompleteReadError, ConnectionError)


def body_of(number: str, path: str, stream: bool, padding: int = 0) -> dict[str, Any]:
    """A request that any of the routes takes."""
    text = "hi" + " " * padding
    body: dict[str, Any] = {"model": "sim", "user": number, "max_tokens": 9}
    if "completions" in path or "messages" in path:
        body["messages"] = [{"role": "user", "content": text}]
    return body | {"prompt": text, "input": text} | ({"stream": True} if stream else {})


class ChaoticClient:
    """One client of the storm; `run` ends when the supply of numbers does."""

    def __init__(self, port: int, dice: Random, supply: Iterator[int], asked: list[Asked]) -> None:
        self._port = port
        self._dice = dice
        self._supply = supply
        self._asked = asked
        self._behaviours = (
            *(self.reads_everything,) * 4,
            *(self.pipelines, self.pipelines, self.reads_slowly, self.trickles),
            *(self.leaves_in_the_answer,) * 4,
            *(self.leaves_at_once,) * 3,
            self.leaves_in_the_request,
            *(self.sends_nonsense, self.sends_garbage, self.goes_elsewhere),
        )

    async def run(self) -> None:
        """Behave badly until there are no numbers left."""
        while True:
            behaviour = self._dice.choice(self._behaviours)
            if not await behaviour():
                return

    # --- what a request is ----------------------------------------------------------------------------------------

    def _next(self, behaviour: str, *, body: bytes | None = None) -> tuple[Asked, bytes] | None:
        number = next(self._supply, None)
        if number is None:
            return None
        dice = self._dice
        path = dice.choice(PATHS)
        stream = path not in NEVER_STREAMED and dice.random() < 0.75
        asked = Asked(f"chaos-{number}", path, stream, behaviour)
        self._asked.append(asked)
        padding = dice.choice((0, 0, 0, 0, 2_000, 70_000))
        content = body if body is not None else body_of(asked.number, path, stream, padding)
        return asked, post(path, content, {"x-request-id": asked.number})

    async def _read(self, connection: RawConnection, asked: Asked, *, pause_s: float = 0.0) -> bool:
        """Read one answer; False when the connection cannot be used any more."""
        answer: Answer | None = None
        try:
            answer = await connection.head()
            while answer.status == 100:
                answer = await connection.head()
            if pause_s and answer.header("transfer-encoding") == "chunked":
                while not answer.complete:
                    await connection.chunk(answer)
                    await asyncio.sleep(pause_s * self._dice.random())
            else:
                await connection.rest(answer)
        except BROKEN:
            if answer is None:
                asked.cut_off = True
                return False
        events = (answer.header("content-type") or "").startswith("text/event-stream")
        asked.saw(answer.status, answer.complete, answer.body, events=events)
        return answer.complete and answer.header("connection") != "close"

    def _leave(self, connection: RawConnection, asked: Asked) -> None:
        asked.left = True
        asked.left_at = asyncio.get_running_loop().time()
        self._dice.choice((connection.close, connection.reset, connection.half_close))()

    # --- behaviours: True to go on --------------------------------------------------------------------------------

    async def reads_everything(self) -> bool:
        """Many requests on one connection, each read to its end."""
        async with connect(self._port) as connection:
            for _ in range(self._dice.randrange(1, 8)):
                sent = self._next("reads_everything")
                if sent is None:
                    return False
                connection.send(sent[1])
                if not await self._read(connection, sent[0]):
                    # Nothing but a broken answer or a refused connection may bring this about.
                    sent[0].cut_off = False
                    break
        return True

    async def pipelines(self) -> bool:
        """Several requests in one write, the answers read in order, or the client gone after some of them."""
        sent = [one for one in (self._next("pipelines") for _ in range(self._dice.randrange(2, 5))) if one is not None]
        stays = self._dice.randrange(1, 9)
        async with connect(self._port) as connection:
            connection.send(b"".join(data for _, data in sent))
            usable = True
            for position, (asked, _) in enumerate(sent):
                if not usable:
                    asked.cut_off = True
                elif position >= stays:
                    self._leave(connection, asked)
                    for later, _ in sent[position + 1 :]:
                        later.left = True
                    break
                else:
                    usable = await self._read(connection, asked)
        return bool(sent)

    async def reads_slowly(self) -> bool:
        """A small receive buffer and pauses: back-pressure as far as the worker."""
        sent = self._next("reads_slowly")
        if sent is None:
            return False
        async with connect(self._port, receive_buffer=4096) as connection:
            connection.send(sent[1])
            if not await self._read(connection, sent[0], pause_s=0.003):
                sent[0].cut_off = False
        return True

    async def trickles(self) -> bool:
        """The body in HTTP chunks of odd sizes, now and then after waiting for 100 Continue."""
        sent = self._next("trickles")
        if sent is None:
            return False
        asked, data = sent
        dice = self._dice
        body = data.partition(b"\r\n\r\n")[2]
        expect = {"expect": "100-continue"} if dice.random() < 0.3 else {}
        headers = {"x-request-id": asked.number, "content-type": "application/json", "transfer-encoding": "chunked"}
        head = request("GET", asked.path, {**headers, **expect}).replace(b"GET", b"POST", 1)
        async with connect(self._port) as connection:
            connection.send(head)
            position = 0
            while position < len(body):
                size = dice.randrange(1, max(len(body) // 3, 2))
                piece = body[position : position + size]
                position += size
                connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
                await asyncio.sleep(dice.choice((0, 0, 0.002)))
            connection.send(b"0\r\n\r\n")
            if not await self._read(connection, asked):
                asked.cut_off = False
        return True

    async def leaves_in_the_answer(self) -> bool:
        """Away after a random number of bytes of the answer, headers included."""
        sent = self._next("leaves_in_the_answer")
        if sent is None:
            return False
        asked, data = sent
        async with connect(self._port) as connection:
            connection.send(data)
            wanted = self._dice.choice((1, 200, 1_000, 5_000, 100_000))
            wanted = self._dice.randrange(1, wanted + 1)
            with suppress(ConnectionError, TimeoutError):
                # A short answer to a kept-alive connection has no more bytes: do not wait for them.
                async with asyncio.timeout(0.25):
                    while wanted > 0 and (piece := await connection.reader.read(wanted)):
                        wanted -= len(piece)
            self._leave(connection, asked)
            await self._until_closed(connection)
        return True

    async def leaves_in_the_request(self) -> bool:
        """Away after a random number of bytes of the request."""
        sent = self._next("leaves_in_the_request")
        if sent is None:
            return False
        asked, data = sent
        head = data.index(b"\r\n\r\n") + 4
        cut = self._dice.randrange(1, self._dice.choice((head, len(data))))
        async with connect(self._port) as connection:
            connection.send(data[:cut])
            await asyncio.sleep(self._dice.choice((0, 0.002, 0.01)))
            self._leave(connection, asked)
            await self._until_closed(connection)
        return True

    async def leaves_at_once(self) -> bool:
        """Away before, or shortly after, the request has been read."""
        sent = self._next("leaves_at_once")
        if sent is None:
            return False
        async with connect(self._port) as connection:
            connection.send(sent[1])
            await asyncio.sleep(self._dice.choice((0, 0, 0.001, 0.01, 0.05)))
            self._leave(connection, sent[0])
            await self._until_closed(connection)
        return True

    async def sends_nonsense(self) -> bool:
        """Proper HTTP, improper body."""
        bodies = (b"", b"{", b"[]", b'{"model":"nope"}', b'{"model":"sim","model":"sim"}', b"[" * 5000, b"\xff{}")
        sent = self._next("sends_nonsense", body=self._dice.choice(bodies))
        if sent is None:
            return False
        async with connect(self._port) as connection:
            connection.send(sent[1])
            if not await self._read(connection, sent[0]):
                sent[0].cut_off = False
        return True

    async def sends_garbage(self) -> bool:
        """Bytes that are no HTTP, or nearly none."""
        dice = self._dice
        garbage = dice.choice(
            (
                dice.randbytes(dice.randrange(1, 2_000)),
                b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
                b"GET /v1/models HTTP/9.9\r\n\r\n",
                b"POST /v1/chat/completions HTTP/1.1\r\nx-request-id: garbage\r\ncontent-length: -1\r\n\r\n",
                b"POST /v1/chat/completions HTTP/1.1\r\nx-request-id: garbage\r\ntransfer-encoding: chunked\r\n\r\nzz",
                b"GET / HTTP/1.1\r\n" + b"a: " + b"b" * 100_000,
                b"\r\n" * 50,
            )
        )
        async with connect(self._port) as connection:
            connection.send(garbage)
            with suppress(ConnectionError, TimeoutError):
                async with asyncio.timeout(0.05):
                    await connection.reader.read(4096)
        return True

    async def goes_elsewhere(self) -> bool:
        """Other methods and routes, on one connection."""
        async with connect(self._port) as connection:
            for _ in range(self._dice.randrange(1, 5)):
                method, path, expected = self._dice.choice(
                    (
                        ("HEAD", "/v1/models", 200),
                        ("HEAD", "/v1/chat/completions", 405),
                        ("OPTIONS", "/v1/chat/completions", 204),
                        ("GET", "/v1/models/sim", 200),
                        ("GET", "/health", 200),
                        ("GET", "/nowhere", 404),
                        ("DELETE", "/v1/chat/completions", 405),
                    )
                )
                connection.send(request(method, path))
                answer = await connection.answer(head=method == "HEAD")
                assert expected == answer.status, (method, path, answer)
        return True

    async def _until_closed(self, connection: RawConnection) -> None:
        """A client that closed only its sending side waits for the gateway's end, which must come."""
        if connection.writer.can_write_eof() and not connection.writer.is_closing():
            with suppress(ConnectionError):
                while await connection.reader.read(65536):
                    pass
