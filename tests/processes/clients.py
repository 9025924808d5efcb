"""Clients that never try again and never forget: what each of them asked, and what became of it."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random

from tests.processes.fleet import MODEL
from tests.proxy.raw_client import RawConnection, connect, post

PATH = "/v1/completions"
DONE = b"data: [DONE]\n\n"


@dataclass(eq=False, slots=True)
class Asked:
    """One request: by which port of the client's, how many events with a token came, and how it ended."""

    port: int = 0
    status: int = 0
    tokens: int = 0
    whole: bool = False
    failure: str = ""


@dataclass
class Load:
    """
    Closed-loop clients that keep their connections, and look before they use one again, as every HTTP client does.

    Args:
        port: The gateway's.
        tokens: Of each stream; half of the requests are not streams.
        pause_s: Longest pause of a client between two requests.
        per_connection: A client takes a new connection after at most so many requests.
    """

    port: int
    tokens: int = 10
    pause_s: float = 0.05
    per_connection: int = 20
    seed: int = 7
    asked: list[Asked] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self, clients: int) -> None:
        """Until `over` is set and every client has finished what it began."""
        async with asyncio.TaskGroup() as group:
            for number in range(clients):
                group.create_task(self._client(Random(f"{self.seed} {number}")))

    @property
    def failed(self) -> list[Asked]:
        """Requests that did not get a whole answer of status 200."""
        return [one for one in self.asked if not one.whole or one.status != 200]

    @property
    def succeeded(self) -> list[Asked]:
        return [one for one in self.asked if one.whole and one.status == 200]

    async def _client(self, dice: Random) -> None:
        while not self.over.is_set():
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            except OSError as error:
                self.refused.append(repr(error))
                return
            connection = RawConnection(reader, writer)
            try:
                for _ in range(dice.randrange(1, self.per_connection)):
                    # A client that finds its connection closed takes another one: nothing was asked, nothing is lost.
                    if self.over.is_set() or reader.at_eof():
                        break
                    if not await self._ask(connection, stream=dice.random() < 0.5):
                        break
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self.over.wait(), dice.random() * self.pause_s)
            finally:
                writer.transport.abort()

    async def _ask(self, connection: RawConnection, *, stream: bool) -> bool:
        """One request; False when the connection cannot be used again."""
        one = Asked(port=connection.writer.get_extra_info("sockname")[1])
        self.asked.append(one)
        body = {"model": MODEL, "prompt": "count", "max_tokens": self.tokens, "ignore_eos": True, "stream": stream}
        try:
            connection.send(post(PATH, body))
            answer = await connection.head()
            one.status = answer.status
            if one.status != 200:
                await connection.rest(answer)
                one.failure = answer.body.decode()
            elif stream:
                while await connection.chunk(answer):
                    one.tokens = answer.body.count(b'"text":')
                one.whole = answer.complete and answer.body.endswith(DONE)
            else:
                await connection.rest(answer)
                one.whole = answer.complete
                one.tokens = answer.json()["usage"]["completion_tokens"] if answer.complete else 0
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            one.failure = repr(error)
            return False
        return one.whole and answer.header("connection") != "close"


async def long_stream(port: int, one: Asked, tokens: int) -> None:
    """One stream on its own connection, noted in `one` as it goes."""
    async with connect(port) as connection:
        one.port = connection.writer.get_extra_info("sockname")[1]
        body = {"model": MODEL, "prompt": "count", "max_tokens": tokens, "ignore_eos": True, "stream": True}
        try:
            connection.send(post(PATH, body))
            answer = await connection.head()
            one.status = answer.status
            while chunk := await connection.chunk(answer):
                one.tokens += chunk.count(b'"text":')
            one.whole = answer.complete and answer.body.endswith(DONE)
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            one.failure = repr(error)
