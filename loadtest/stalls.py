"""Ending connections on which nothing comes any more: one sweep over all of them instead of a timer per read."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from types import TracebackType
from typing import Protocol

_SWEEPS_PER_LIMIT = 8
_LONGEST_PAUSE_S = 0.5


class Watched(Protocol):
    """An exchange, as far as the guard looks."""

    last_read_at: float
    stalled: bool


class StallGuard:
    """
    Shuts a socket down when nothing was read from it for `limit_s` seconds (late by at most an eighth, or 0.5 s).

    Whoever reads then sees an end of file, and `stalled` on the exchange. The sweep is a thread of the standard
    library, which gevent's patch makes a greenlet.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._watched: dict[int, tuple[Watched, socket.socket]] = {}
        self._ended = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="stall-guard", daemon=True)

    def __enter__(self) -> StallGuard:
        self._sweeper.start()
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        self._ended.set()
        self._sweeper.join()

    def watch(self, exchange: Watched, sock: socket.socket) -> None:
        """From now on, until `forget`."""
        self._watched[id(exchange)] = (exchange, sock)

    def forget(self, exchange: Watched) -> None:
        """The exchange is over."""
        self._watched.pop(id(exchange), None)

    def _sweep(self) -> None:
        pause = min(_LONGEST_PAUSE_S, self.limit_s / _SWEEPS_PER_LIMIT)
        while not self._ended.wait(pause):
            oldest = time.perf_counter() - self.limit_s
            for exchange, sock in list(self._watched.values()):
                if exchange.last_read_at < oldest and not exchange.stalled:
                    exchange.stalled = True
                    with contextlib.suppress(OSError):  # the peer was quicker: the reader learns of it by itself
                        sock.shutdown(socket.SHUT_RDWR)
