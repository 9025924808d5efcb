"""
A gateway process's end of the line to its supervisor: JSON lines over the inherited socket (`gateway.messages`).

Nothing here waits for the supervisor: of load reports only the newest waits to be sent, and failure reports are limited
in rate and number. The line's end is a message too: it ends `run`, and the process stops accepting.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Callable

import anyio
import msgspec

from gateway.clock import Clock
from gateway.errors import ControlUnavailable
from gateway.messages import (
    Configure,
    Drain,
    Hello,
    Lines,
    LoadReport,
    Snapshot,
    ToGateway,
    WorkerFailure,
    WorkerLoad,
    decode_to_gateway,
    encode,
)
from gateway.types import FleetSnapshot

LOAD_REPORT_INTERVAL_S = 1.0
FAILURE_INTERVAL_S = 1.0
"""One report a second for each launch tells the supervisor, which then probes the worker, as much as a thousand."""
MAX_WAITING_FAILURES = 64
_READ_BYTES = 64 * 1024


class SupervisorLink:
    """
    The line of one gateway process. First `configuration`, then `run` until the end.

    Args:
        end: Our end of the socket pair, owned from now on; closed when `run` ends or by `close`.
        clock: For the rate limit.
    """

    def __init__(self, end: socket.socket, clock: Clock) -> None:
        end.setblocking(False)
        self._socket = end
        self._clock = clock
        self._received = Lines()
        self._lines: deque[bytes] = deque()
        self._waiting: deque[bytes] = deque()
        self._newest_report: LoadReport | None = None
        self._something_to_send = anyio.Event()
        self._last_failure: dict[str, tuple[str, float]] = {}

    @classmethod
    def from_fd(cls, fd: int, clock: Clock) -> SupervisorLink:
        """
        Take over the inherited descriptor.

        Raises:
            ControlUnavailable: It is not a connected Unix socket.
        """
        try:
            end = socket.socket(fileno=fd)
            end.getpeername()
        except OSError as exc:
            raise ControlUnavailable(
                f"expected the supervisor's socket at descriptor {fd}, found none ({exc.strerror})",
                fix="start the gateway with `gateway up`, which starts its gateway processes itself",
            ) from exc
        return cls(end, clock)

    async def configuration(self) -> Configure:
        """
        The first message.

        Raises:
            ControlUnavailable: The supervisor went away or sent something else first.
        """
        line = await self._next_line()
        if line is None:
            raise ControlUnavailable("the supervisor went away before it sent the configuration", fix="gateway up")
        message = _decode(line)
        if not isinstance(message, Configure):
            raise ControlUnavailable(
                f"expected the configuration as the supervisor's first message, found {type(message).__name__}",
                fix="stop the supervisor and start it again, so that both run the same release",
            )
        return message

    def hello(self, pid: int, release: str = "", *, compiled: bool = False) -> None:
        """This process listens; sent as soon as `run` runs."""
        self._queue(encode(Hello(pid=pid, release=release, compiled=compiled)))

    def report_failure(self, failure: WorkerFailure) -> None:
        """Tell of a worker's failure: for each launch at once the first time, then once in `FAILURE_INTERVAL_S`."""
        now_s = self._clock.monotonic()
        launch_id, last_s = self._last_failure.get(failure.worker, ("", 0.0))
        if launch_id == failure.launch_id and now_s - last_s < FAILURE_INTERVAL_S:
            return
        if len(self._waiting) >= MAX_WAITING_FAILURES:
            return
        self._last_failure[failure.worker] = (failure.launch_id, now_s)
        self._queue(encode(failure))

    async def run(
        self,
        *,
        on_snapshot: Callable[[FleetSnapshot], object],
        on_drain: Callable[[float], object],
        loads: Callable[[], tuple[WorkerLoad, ...]],
        on_replaced: Callable[[float], object] | None = None,
        connections: Callable[[], int] = lambda: 0,
    ) -> None:
        """
        Receive and send until the supervisor's end closes, then return.

        Args:
            on_snapshot: Called with each snapshot, in order; must not block.
            on_drain: Called with the seconds this process may take to finish; must not block. The line stays up.
            loads: What to report every second.
            on_replaced: As `on_drain`, when another process has taken over; None: `on_drain`.
            connections: How many clients have one open, for the same report.

        Raises:
            ControlUnavailable: The supervisor does not speak the protocol.
        """
        broken: ControlUnavailable | None = None
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(self._send_all)
                group.start_soon(self._report_all, loads, connections)
                try:
                    await self._receive_all(on_snapshot, on_drain, on_replaced or on_drain)
                except ControlUnavailable as exc:
                    broken = exc  # raised below, outside of the group, which would wrap it
                group.cancel_scope.cancel()
        finally:
            self._socket.close()
        if broken is not None:
            raise broken

    def close(self) -> None:
        """Close without having run."""
        self._socket.close()

    async def _receive_all(
        self,
        on_snapshot: Callable[[FleetSnapshot], object],
        on_drain: Callable[[float], object],
        on_replaced: Callable[[float], object],
    ) -> None:
        while (line := await self._next_line()) is not None:
            match _decode(line):
                case Snapshot(fleet=fleet):
                    on_snapshot(fleet)
                case Drain(deadline_s=deadline_s, replaced=True):
                    on_replaced(deadline_s)
                case Drain(deadline_s=deadline_s):
                    on_drain(deadline_s)
                case Configure():
                    raise ControlUnavailable(
                        "the supervisor sent a second configuration; a gateway process takes one",
                        fix="stop the supervisor and start it again, so that both run the same release",
                    )

    async def _report_all(self, loads: Callable[[], tuple[WorkerLoad, ...]], connections: Callable[[], int]) -> None:
        while True:
            self._newest_report = LoadReport(loads=loads(), connections=connections())
            self._something_to_send.set()
            await anyio.sleep(LOAD_REPORT_INTERVAL_S)

    async def _send_all(self) -> None:
        while True:
            await self._something_to_send.wait()
            self._something_to_send = anyio.Event()
            while self._waiting or self._newest_report is not None:
                if self._waiting:
                    line = self._waiting.popleft()
                else:
                    assert self._newest_report is not None
                    line = encode(self._newest_report)
                    self._newest_report = None
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
                return False  # the reader sees the end of the line and says so
            rest = rest[sent:]
        return True

    async def _next_line(self) -> bytes | None:
        """The next whole line, None at the end of the line; what is unfinished then is dropped."""
        while not self._lines:
            try:
                received = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            except ConnectionResetError:
                return None
            if not received:
                return None
            self._lines.extend(self._received.feed(received))
        return self._lines.popleft()

    def _queue(self, line: bytes) -> None:
        self._waiting.append(line)
        self._something_to_send.set()


def _decode(line: bytes) -> ToGateway:
    try:
        return decode_to_gateway(line)
    except msgspec.DecodeError as exc:
        # The line may hold keys: its beginning is not shown.
        raise ControlUnavailable(
            f"the supervisor sent a line of {len(line)} bytes that is no message ({exc})",
            fix="stop the supervisor and start it again, so that both run the same release",
        ) from exc
