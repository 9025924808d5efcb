"""
The supervisor's end of the line to one gateway process: JSON lines over a socket pair (`gateway.messages`).

A gateway process that is slow to read never blocks the supervisor and never makes it buffer without bound: of the
fleet snapshots only the newest waits (an older one is worthless), and the few other messages have a fixed limit.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

import anyio
import anyio.lowlevel
import msgspec

from gateway.errors import GatewayError
from gateway.messages import Configure, Drain, Lines, Snapshot, ToSupervisor, decode_to_supervisor, encode
from gateway.types import FleetSnapshot

MAX_LINE_BYTES = 1024 * 1024
MAX_WAITING = 8
_READ_BYTES = 4096
"""Read at a time: one that writes without end gets turns of a few milliseconds."""


class ChannelBroken(GatewayError):
    """The gateway process broke the protocol of the channel; it must be replaced."""


class Channel:
    """
    One socket pair's supervisor end. `run` moves bytes until the other side ends; the senders never wait.

    Args:
        end: Our end, owned from now on; closed when `run` ends.
        on_message: Called in order for every message received. Must not block.
    """

    def __init__(self, end: socket.socket, on_message: Callable[[ToSupervisor], None]) -> None:
        end.setblocking(False)
        self._socket = end
        self._on_message = on_message
        self._waiting: deque[bytes] = deque()
        self._newest: FleetSnapshot | None = None
        self._something_to_send = anyio.Event()

    def send(self, message: Configure | Drain) -> None:
        """Queue a message, before any snapshot that waits. Raises ChannelBroken when too many wait."""
        if len(self._waiting) >= MAX_WAITING:
            raise ChannelBroken(f"the gateway process has not read its last {MAX_WAITING} messages")
        self._waiting.append(encode(message))
        self._something_to_send.set()

    def send_snapshot(self, fleet: FleetSnapshot) -> None:
        """Send this snapshot next; one that still waits is dropped. A version lower than that one's is ignored."""
        if self._newest is not None and fleet.version <= self._newest.version:
            return
        self._newest = fleet
        self._something_to_send.set()

    async def run(self) -> None:
        """Send and receive until the other side closes. Raises ChannelBroken when it does not speak the protocol."""
        broken: ChannelBroken | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._send_all)
                try:
                    await self._receive_all()
                except ChannelBroken as exc:
                    broken = exc  # raised below, outside of the group, which would wrap it
                group.cancel_scope.cancel()
        finally:
            self._socket.close()
        if broken is not None:
            raise broken

    def close(self) -> None:
        """Close our end without having run."""
        self._socket.close()

    async def _send_all(self) -> None:
        while True:
            await self._something_to_send.wait()
            self._something_to_send = anyio.Event()
            while self._waiting or self._newest is not None:
                if self._waiting:
                    line = self._waiting.popleft()
                else:
                    assert self._newest is not None
                    line = encode(Snapshot(fleet=self._newest))
                    self._newest = None
                if not await self._send_line(line):
                    return

    async def _send_line(self, line: bytes) -> bool:
        rest = memoryview(line)
        while rest:
            try:
                sent = self._socket.send(rest)
            except BlockingIOError:
                await anyio.wait_writable(self._socket)
                continue
            except (BrokenPipeError, ConnectionResetError):
                return False  # the reader sees the end of the channel and says so
            rest = rest[sent:]
        return True

    async def _receive_all(self) -> None:
        lines = Lines()
        while True:
            try:
                received = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            except ConnectionResetError:
                return
            if not received:
                return
            for line in lines.feed(received):
                self._deliver(line)
            if lines.unfinished > MAX_LINE_BYTES:
                raise ChannelBroken(f"the gateway process sent a line of more than {MAX_LINE_BYTES} bytes")
            # One that writes without end must not keep the loop from everything else.
            await anyio.lowlevel.checkpoint()

    def _deliver(self, line: bytes) -> None:
        try:
            message = decode_to_supervisor(line)
        except msgspec.DecodeError as exc:
            raise ChannelBroken(f"the gateway process sent {line[:80]!r}, which is no message ({exc})") from exc
        self._on_message(message)
