"""The public HTTP server of a gateway process: when it begins, and how it hands its clients over to another process."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
from collections.abc import Callable, Iterator

import uvicorn

from gateway.api.server_protocol import GatewayProtocol

IDLE_S = 5.0
"""A connection on which nothing was asked for so long is closed when its process leaves: pools of clients that are in
use ask more often, and are told by the answer."""
LOOK_S = 0.25
DATE_EVERY_S = 1.0


class PublicServer(uvicorn.Server):
    """uvicorn's server without its signal handling, which is ours, and with a call when it accepts connections."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started
        self._ending = asyncio.Event()

    def end(self) -> None:
        """Stop accepting, end what runs as the configuration says, and return from `serve`."""
        self.should_exit = True
        self._ending.set()

    async def main_loop(self) -> None:
        """
        See uvicorn, which looks ten times a second whether it should end, and every tenth time at the date. That would
        wake an idle process as often, and hold up a busy one.
        """
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_EVERY_S):
                    await self._ending.wait()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await super().startup(sockets)
        self._on_started()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    async def hand_over(self) -> None:
        """
        Another process accepts on the same address: accept nothing more, serve what arrives on open connections, and
        return when the last of them is closed.

        A server that closes a connection may meet a request on its way, and a client without retries has lost it then.
        So the client is asked to close: every answer from now on says `connection: close`. Only connections on which
        nothing was asked for `IDLE_S` are closed from here, and never one on which something has arrived.
        """
        self._stop_accepting()
        loop = asyncio.get_running_loop()
        while self.server_state.connections:
            for connection in list(self.server_state.connections):
                assert isinstance(connection, GatewayProtocol)
                since_s = connection.idle_since_s
                if since_s is not None and loop.time() - since_s >= IDLE_S and not _readable(connection.transport):
                    connection.transport.close()
            await asyncio.sleep(LOOK_S)

    def _stop_accepting(self) -> None:
        """Close the listener (never shut it down: others listen on it); no connection outlives its next answer."""
        for server in self.servers:
            server.close()
        closing = (b"connection", b"close")
        self.config.encoded_headers.append(closing)  # for the header set of every later second
        self.server_state.default_headers = [*self.server_state.default_headers, closing]


def _readable(transport: asyncio.Transport) -> bool:
    """Whether something has arrived that the event loop has not read yet."""
    poll = select.poll()
    poll.register(transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))
