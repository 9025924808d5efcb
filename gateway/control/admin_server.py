"""Serves the admin application on its two sockets, with uvicorn inside the supervisor's own event loop."""

from __future__ import annotations

import socket
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager

import anyio
import uvicorn
from starlette.types import ASGIApp

# A scraper that hangs must not hold up the end of the program.
_GRACE_S = 1


class UvicornAdminServer:
    """
    One application, guarded on TCP and plain on the Unix socket.

    Args:
        tcp_app: What TCP callers reach.
        unix_app: What callers on the owner's Unix socket reach.
        beside: What the application needs running for as long as it answers.
    """

    def __init__(
        self, tcp_app: ASGIApp, unix_app: ASGIApp, *beside: Callable[[], Coroutine[object, object, None]]
    ) -> None:
        self._servers = (_server(tcp_app), _server(unix_app))
        self._beside = beside

    async def serve(self, tcp: socket.socket, unix: socket.socket) -> None:
        """Answer until cancelled."""
        try:
            async with anyio.create_task_group() as group:
                for task in self._beside:
                    group.start_soon(task)
                for server, bound in zip(self._servers, (tcp, unix), strict=True):
                    # uvicorn closes the socket it is given; ours belongs to whoever opened it.
                    group.start_soon(server.serve, [bound.dup()])
        finally:
            for server in self._servers:
                server.abort()


class _Server(uvicorn.Server):
    """uvicorn without its signal handling: signals belong to the supervisor."""

    @contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    def abort(self) -> None:
        """Close what is open, after a cancellation that kept uvicorn from doing so."""
        for listener in getattr(self, "servers", []):
            listener.close()
        for connection in list(self.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None:
                transport.abort()


def _server(app: ASGIApp) -> _Server:
    return _Server(
        uvicorn.Config(
            app,
            lifespan="off",
            access_log=False,
            log_config=None,
            log_level="warning",
            timeout_graceful_shutdown=_GRACE_S,
            server_header=False,
            ws="none",
        )
    )
