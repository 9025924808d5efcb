"""The line to the supervisor over a real socket pair."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from gateway.errors import ControlUnavailable
from gateway.fleet import SupervisorLink
from gateway.messages import (
    Configure,
    Drain,
    Hello,
    LoadReport,
    Snapshot,
    ToSupervisor,
    WorkerFailure,
    WorkerLoad,
    decode_to_supervisor,
    encode,
)
from gateway.types import FleetSnapshot, WorkerView

pytestmark = pytest.mark.anyio

CONFIGURE = Configure(settings_json="{}", slot=0, keys_file="keys")


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Ours and the supervisor's."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    yield ours, theirs
    ours.close()
    theirs.close()


@pytest.fixture
def link(ends: tuple[socket.socket, socket.socket], clock: Any) -> SupervisorLink:
    return SupervisorLink(ends[0], clock)


class Supervisor:
    """Reads what the gateway process says, message by message."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end
        self._buffer = b""

    async def next(self, *, skip_loads: bool = True) -> ToSupervisor:
        while True:
            while b"\n" not in self._buffer:
                await anyio.wait_readable(self._end)
                self._buffer += self._end.recv(65536)
            line, _, self._buffer = self._buffer.partition(b"\n")
            message = decode_to_supervisor(line)
            if not (skip_loads and isinstance(message, LoadReport)):
                return message


def failure(worker: str, launch: str = "1") -> WorkerFailure:
    return WorkerFailure(worker=worker, launch_id=launch, kind="connect", detail="refused")


async def test_settings_come_first_then_snapshots_and_the_order_to_drain(
    link: SupervisorLink,
    ends: tuple[socket.socket, socket.socket],
    snapshot: Callable[..., FleetSnapshot],
    worker: Callable[..., WorkerView],
) -> None:
    """All in one burst, cut anywhere: each message arrives once, in order; the end of the line ends `run`."""
    snapshots = [snapshot(1), snapshot(2, worker("llama-0"))]
    burst = b"".join(
        map(encode, (CONFIGURE, Snapshot(fleet=snapshots[0]), Drain(deadline_s=25.0), Snapshot(fleet=snapshots[1])))
    )
    heard: list[object] = []

    async def speak() -> None:
        for start in range(0, len(burst), 7):
            ends[1].sendall(burst[start : start + 7])
            await anyio.lowlevel.checkpoint()
        ends[1].shutdown(socket.SHUT_WR)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(speak)
            assert CONFIGURE == await link.configuration()
            await link.run(on_snapshot=heard.append, on_drain=heard.append, loads=lambda: ())

    assert [snapshots[0], 25.0, snapshots[1]] == heard


async def test_a_replaced_process_is_told_so(link: SupervisorLink, ends: tuple[socket.socket, socket.socket]) -> None:
    """What still arrives there is to be served, so it is another call than the end of the whole gateway."""
    heard: list[tuple[str, float]] = []
    for message in (CONFIGURE, Drain(deadline_s=9.0, replaced=True), Drain(deadline_s=1.0)):
        ends[1].sendall(encode(message))
    ends[1].shutdown(socket.SHUT_WR)
    with anyio.fail_after(30):
        await link.configuration()
        await link.run(
            on_snapshot=print,
            on_drain=lambda deadline_s: heard.append(("drain", deadline_s)),
            on_replaced=lambda deadline_s: heard.append(("replaced", deadline_s)),
            loads=lambda: (),
        )

    assert [("replaced", 9.0), ("drain", 1.0)] == heard


async def test_hello_failures_and_loads_reach_the_supervisor(
    link: SupervisorLink, ends: tuple[socket.socket, socket.socket]
) -> None:
    """Loads are reported at once and then every second, so that silence means trouble."""
    load = WorkerLoad(worker="llama-0", launch_id="1", in_flight=3, silent_s=0.5)
    supervisor = Supervisor(ends[1])
    link.hello(4711)

    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(link.run, on_snapshot=print, on_drain=print, loads=lambda: (load,)))
            assert Hello(pid=4711) == await supervisor.next()
            link.report_failure(failure("llama-0"))
            assert failure("llama-0") == await supervisor.next()
            assert LoadReport(loads=(load,)) == await supervisor.next(skip_loads=False)
            ends[1].shutdown(socket.SHUT_WR)


async def test_failures_are_limited_in_rate_for_each_launch(
    link: SupervisorLink,
    ends: tuple[socket.socket, socket.socket],
    clock: Any,
) -> None:
    """A thousand failures in one moment are one report; another worker, another launch, a second later: again one."""
    supervisor = Supervisor(ends[1])
    for _ in range(1000):
        link.report_failure(failure("llama-0"))
        link.report_failure(failure("llama-1"))
    link.report_failure(failure("llama-0", launch="2"))
    clock.now_s += 1.0
    link.report_failure(failure("llama-1"))
    link.report_failure(failure("llama-1"))
    link.hello(1)

    heard: list[ToSupervisor] = []
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(link.run, on_snapshot=print, on_drain=print, loads=lambda: ()))
            while not heard or not isinstance(heard[-1], Hello):
                heard.append(await supervisor.next())
            ends[1].shutdown(socket.SHUT_WR)

    expected = [failure("llama-0"), failure("llama-1"), failure("llama-0", launch="2"), failure("llama-1")]
    assert expected == heard[:-1]


async def test_a_supervisor_that_does_not_read_never_holds_us_up(
    link: SupervisorLink, ends: tuple[socket.socket, socket.socket], snapshot: Callable[..., FleetSnapshot]
) -> None:
    """With its socket full we still hear it, and what waits to be sent stays bounded."""
    heard: list[FleetSnapshot] = []
    arrived = anyio.Event()

    def on_snapshot(fleet: FleetSnapshot) -> None:
        heard.append(fleet)
        arrived.set()

    many = tuple(WorkerLoad(worker="w" * 1000, launch_id="1", in_flight=1, silent_s=None) for _ in range(3000))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(partial(link.run, on_snapshot=on_snapshot, on_drain=print, loads=lambda: many))
            await anyio.wait_all_tasks_blocked()
            for number in range(10_000):
                link.report_failure(failure(f"llama-{number}"))
            ends[1].sendall(encode(Snapshot(fleet=snapshot(1))))
            await arrived.wait()
            assert len(link._waiting) <= 64
            ends[1].shutdown(socket.SHUT_WR)

    assert 1 == len(heard)


@pytest.mark.parametrize("last_words", [b"", b'{"type":"config'])
async def test_a_supervisor_gone_before_the_settings_is_said(
    link: SupervisorLink, ends: tuple[socket.socket, socket.socket], last_words: bytes
) -> None:
    """An unfinished line is no message."""
    ends[1].sendall(last_words)
    ends[1].close()

    with anyio.fail_after(30), pytest.raises(ControlUnavailable, match="went away before it sent"):
        await link.configuration()
    link.close()


@pytest.mark.parametrize(
    "line", [b"no json\n", b'{"type":"hello","pid":1}\n', b'{"type":"configure","settings_json":"secret"}\n']
)
async def test_a_line_that_is_no_message_ends_the_process_without_being_shown(
    link: SupervisorLink, ends: tuple[socket.socket, socket.socket], line: bytes
) -> None:
    """Settings hold keys; an error must not print them."""
    ends[1].sendall(line)

    with anyio.fail_after(30), pytest.raises(ControlUnavailable, match="is no message") as caught:
        await link.run(on_snapshot=print, on_drain=print, loads=lambda: ())

    assert "secret" not in str(caught.value)
    assert -1 == ends[0].fileno()


async def test_anything_but_the_settings_first_is_refused(
    link: SupervisorLink, ends: tuple[socket.socket, socket.socket]
) -> None:
    """And so are settings a second time."""
    ends[1].sendall(encode(Drain(deadline_s=1.0)) + encode(CONFIGURE))

    with anyio.fail_after(30):
        with pytest.raises(ControlUnavailable, match="first message, found Drain"):
            await link.configuration()
        with pytest.raises(ControlUnavailable, match="second configuration"):
            await link.run(on_snapshot=print, on_drain=print, loads=lambda: ())


def test_a_descriptor_that_is_no_socket_is_said(tmp_path: Path, clock: Any) -> None:
    """A gateway process started by hand says what starts it."""
    with (tmp_path / "file").open("wb") as file, pytest.raises(ControlUnavailable, match="gateway up"):
        SupervisorLink.from_fd(file.fileno(), clock)
