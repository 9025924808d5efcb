"""What a scripted server remembers: connections, requests, and meeting points between scripts and the test."""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from loadtest.servers.http1 import ReceivedRequest

ClosedHow = Literal["fin", "reset"]


@dataclass(slots=True, eq=False)
class Connection:
    """One accepted connection, as seen from the server. Times are loop.time() seconds."""

    index: int
    opened_at: float
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the peer closed: its FIN arrived or its RST. Not set when the script closed first."""
    closed_at: float | None = None
    closed_how: ClosedHow | None = None
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the connection is gone, whoever closed it."""
    requests: list[RecordedRequest] = field(default_factory=list)
    received: bytearray = field(default_factory=bytearray)


@dataclass(slots=True, eq=False)
class RecordedRequest:
    """One request: what was received, what became of its connection, how much was sent; times as in Connection."""

    index: int
    connection: Connection
    http: ReceivedRequest
    began_at: float
    complete: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the last byte of the request has arrived."""
    completed_at: float | None = None
    head_seen: bool = False
    """The script was started by the request's head (respond_on="head")."""
    answered: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the script came to its end."""
    sent: int = 0
    """Bytes handed to the kernel for this request; grows only as fast as the peer reads once buffers are full."""

    @property
    def closed(self) -> asyncio.Event:
        """Set when the peer closed the connection of this request (FIN or RST)."""
        return self.connection.closed

    @property
    def closed_how(self) -> ClosedHow | None:
        """How the peer closed, None while it has not."""
        return self.connection.closed_how

    @property
    def method(self) -> str:
        """GET, POST, ..."""
        return self.http.method

    @property
    def target(self) -> str:
        """The request target as sent."""
        return self.http.target

    @property
    def path(self) -> str:
        """The request target without its query string."""
        return self.http.target.partition("?")[0]

    @property
    def headers(self) -> list[tuple[str, str]]:
        """Names and values in order and case of arrival."""
        return self.http.headers

    @property
    def body(self) -> bytes:
        """The body without its framing."""
        return bytes(self.http.body)

    @property
    def raw(self) -> bytes:
        """Every byte of the request."""
        return bytes(self.http.raw)

    def header(self, name: str) -> str | None:
        """The first value of a header, any case; None when absent."""
        return self.http.header(name)

    def json(self) -> Any:
        """The body parsed."""
        return json.loads(self.body)


class Journal:
    """Everything recorded by one server, with waiting on it. Gates open for good; marks stay reached."""

    def __init__(self) -> None:
        self.requests: list[RecordedRequest] = []
        self.connections: list[Connection] = []
        self.errors: list[BaseException] = []
        self._gates: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._marks: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._waiters: list[asyncio.Future[None]] = []

    def changed(self) -> None:
        """Wakes everybody in `until`."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Waits until the condition holds; looked at after every recorded change."""
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter

    def mark(self, name: str) -> None:
        """A script came to this place."""
        self._marks[name].set()

    async def marked(self, name: str) -> None:
        """Waits until a script came to this place."""
        await self._marks[name].wait()

    def open_gate(self, name: str) -> None:
        """Lets through whoever waits at this gate, and whoever comes later."""
        self._gates[name].set()

    async def gate(self, name: str) -> None:
        """Waits at this gate."""
        await self._gates[name].wait()
