"""One connection of the fault server: plays scripts, and reads all the while so that the peer's close is seen."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast

from loadtest.servers.http1 import ReceivedRequest, RequestReader
from loadtest.servers.recording import ClosedHow, Connection, Journal, RecordedRequest
from loadtest.servers.steps import (
    Fin,
    Flood,
    Gate,
    HalfClose,
    Mark,
    Reset,
    ResumeReading,
    Script,
    Send,
    Sleep,
    Stall,
    Step,
    StopReading,
)

RespondOn = Literal["first-byte", "head", "complete"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How a server treats its connections; see FaultServer for the meaning of each."""

    script_for: Callable[[RecordedRequest], Script]
    on_connect: Script = ()
    close_after: int | None = None
    respond_on: RespondOn = "complete"


class ScriptedConnection(asyncio.Protocol):
    """
    Records into a journal and acts by a plan.

    One task per connection plays the scripts of its requests in order. The peer's FIN alone does not stop a script (the
    peer may have closed only its sending side); a reset does.
    """

    def __init__(self, journal: Journal, plan: Plan, living: set[ScriptedConnection]) -> None:
        self._journal, self._plan, self._living = journal, plan, living
        self._reader = RequestReader()
        self._receiving: tuple[ReceivedRequest, RecordedRequest] | None = None
        self._due: asyncio.Queue[RecordedRequest | None] = asyncio.Queue()
        self._writable = asyncio.Event()
        self._writable.set()
        self._we_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts recording and playing."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(0)  # every write is awaited, so `sent` is what the kernel took
        sock = self._transport.get_extra_info("socket")
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._loop = asyncio.get_running_loop()
        self._record = Connection(len(self._journal.connections), self._loop.time())
        self._journal.connections.append(self._record)
        self._living.add(self)
        self.player = self._loop.create_task(self._play())
        self._journal.changed()

    def data_received(self, data: bytes) -> None:
        """Records bytes; a request is due when the plan says so."""
        self._record.received += data
        for http in self._reader.feed(data):
            if self._receiving is None or self._receiving[0] is not http:
                request = RecordedRequest(len(self._journal.requests), self._record, http, self._loop.time())
                self._journal.requests.append(request)
                self._record.requests.append(request)
                self._receiving = (http, request)
                if self._plan.respond_on == "first-byte":
                    self._due.put_nowait(request)
            self._progressed(self._receiving[1])
        self._journal.changed()

    def _progressed(self, request: RecordedRequest) -> None:
        if self._plan.respond_on == "head" and request.http.head_complete and not request.head_seen:
            request.head_seen = True
            self._due.put_nowait(request)
        if request.http.complete:
            request.completed_at = self._loop.time()
            request.complete.set()
            if self._plan.respond_on == "complete":
                self._due.put_nowait(request)

    def eof_received(self) -> bool:
        """Notes the peer's FIN; the sending side stays open for the script."""
        self._peer_closed("fin")
        self._due.put_nowait(None)
        return True

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        if exc is not None and not self._we_closed:
            self._peer_closed("reset")
        self._record.ended.set()
        self._living.discard(self)
        self.player.cancel()
        self._journal.changed()

    def _peer_closed(self, how: ClosedHow) -> None:
        if not self._record.closed.is_set():
            self._record.closed_at, self._record.closed_how = self._loop.time(), how
            self._record.closed.set()
            self._journal.changed()

    def pause_writing(self) -> None:
        """The kernel takes no more bytes."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """The kernel took everything."""
        self._writable.set()

    def abort(self) -> None:
        """Ends the connection at once, from the server's side."""
        self._we_closed = True
        self._transport.abort()

    async def _play(self) -> None:
        for step in self._plan.on_connect:
            await self._do(step, None)
        answered = 0
        while not self._transport.is_closing():
            request = await self._due.get()
            if request is None:
                break
            try:
                script = self._plan.script_for(request)
            except Exception as error:
                # The script's author learns of it when the server's context ends; the peer sees a reset.
                self._journal.errors.append(error)
                await self._do(Reset(), None)
                return
            try:
                for step in script:
                    await self._do(step, request)
            except Exception as error:
                # A script that cannot be played (bytes after its own half-close) must not look like a hanging server.
                self._journal.errors.append(error)
                await self._do(Reset(), None)
                return
            request.answered.set()
            self._journal.changed()
            answered += 1
            if answered == self._plan.close_after:
                break
        self._we_closed = True
        self._transport.close()

    async def _do(self, step: Step, request: RecordedRequest | None) -> None:
        match step:
            case Send():
                pieces = step.pieces()
                for number, piece in enumerate(pieces):
                    if number:
                        await asyncio.sleep(step.gap_s)
                    await self._write(piece, request)
            case Flood():
                for _ in range(-(-step.total // len(step.data))):
                    await self._write(step.data, request)
            case Gate():
                self._journal.mark(step.name)
                await self._journal.gate(step.name)
            case Mark():
                self._journal.mark(step.name)
            case Sleep():
                await asyncio.sleep(step.seconds)
            case Stall():
                await self._record.closed.wait()
            case StopReading():
                self._transport.pause_reading()
            case ResumeReading():
                self._transport.resume_reading()
            case Reset():
                self._transport.get_extra_info("socket").setsockopt(
                    socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0)
                )
                self.abort()
            case Fin():
                self._we_closed = True
                self._transport.close()
            case HalfClose():
                self._transport.write_eof()

    async def _write(self, data: bytes, request: RecordedRequest | None) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(data)
        await self._writable.wait()
        if request is not None:
            request.sent += len(data)
