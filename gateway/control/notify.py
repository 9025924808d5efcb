"""What systemd is told when it started us (`Type=notify`): datagrams to the socket that it names. See sd_notify(3)."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress

import anyio

from gateway.control.watcher import Addresses, Watcher
from gateway.types import WorkerState
from gateway.workers.status import WorkerStatus


class SystemdWatcher:
    """
    Tells the service manager how the gateway is doing (`Watcher`): READY once everything serves, a status line, and a
    sign of life while the event loop turns.

    Args:
        address: NOTIFY_SOCKET: a path, or `@NAME` for an abstract socket.
        watchdog_s: How long systemd waits for a sign of life, None when it does not.
    """

    def __init__(self, address: str, watchdog_s: float | None = None) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._watchdog_s = watchdog_s
        self._status = ""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> SystemdWatcher | None:
        """None when no service manager waits to be told."""
        address = environ.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return None
        microseconds = environ.get("WATCHDOG_USEC", "")
        mine = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        return cls(address, int(microseconds) / 1e6 if microseconds.isdigit() and mine else None)

    def listening(self, addresses: Addresses) -> None:
        """See `Watcher`."""
        self._say("starting workers")

    def changed(self, statuses: Sequence[WorkerStatus]) -> None:
        """See `Watcher`."""
        ready = sum(status.state is WorkerState.READY for status in statuses)
        down = [status.name for status in statuses if status.state in (WorkerState.FAILED, WorkerState.BACKOFF)]
        self._say(f"{ready} of {len(statuses)} workers ready" + (f", down: {', '.join(down)}" if down else ""))

    def serving(self) -> None:
        """See `Watcher`."""
        self._send("READY=1")

    def said(self, line: str) -> None:
        """See `Watcher`."""

    def stopping(self, reason: str) -> None:
        """See `Watcher`."""
        self._send("STOPPING=1")
        self._say(f"stopping ({reason})")

    def stopped(self, took_s: float, survivors: Sequence[int]) -> None:
        """See `Watcher`."""

    async def run(self) -> None:
        """Signs of life, at half of the interval."""
        interval_s = self._watchdog_s
        while interval_s is not None:
            self._send("WATCHDOG=1")
            await anyio.sleep(interval_s / 2)

    def _say(self, status: str) -> None:
        if status != self._status:
            self._status = status
            self._send(f"STATUS={status}")

    def _send(self, message: str) -> None:
        # A service manager that does not listen must not cost the service anything.
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(message.encode(), self._address)


class Several:
    """Tells several watchers, in order."""

    def __init__(self, watchers: Sequence[Watcher]) -> None:
        self._watchers = watchers

    def listening(self, addresses: Addresses) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.listening(addresses)

    def changed(self, statuses: Sequence[WorkerStatus]) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.changed(statuses)

    def serving(self) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.serving()

    def said(self, line: str) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.said(line)

    def stopping(self, reason: str) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.stopping(reason)

    def stopped(self, took_s: float, survivors: Sequence[int]) -> None:
        """See `Watcher`."""
        for watcher in self._watchers:
            watcher.stopped(took_s, survivors)

    async def run(self) -> None:
        """See `Watcher`."""
        async with anyio.create_task_group() as group:
            for watcher in self._watchers:
                group.start_soon(watcher.run)
