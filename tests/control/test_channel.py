"""The supervisor's end of a gateway process's control channel."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import anyio
import pytest

from gateway.control.channel import MAX_LINE_BYTES, MAX_WAITING, Channel, ChannelBroken
from gateway.messages import Configure, Drain, Hello, Snapshot, ToGateway, ToSupervisor, decode_to_gateway, encode
from gateway.types import FleetSnapshot, ModelView

pytestmark = pytest.mark.anyio


class Pair:
    """A channel and the other end of its socket pair, which the test plays."""

    def __init__(self) -> None:
        ours, self.theirs = socket.socketpair()
        self.received: list[ToSupervisor] = []
        self.channel = Channel(ours, self.received.append)

    async def read(self, count: int) -> list[ToGateway]:
        """The next messages the channel sent."""
        return await anyio.to_thread.run_sync(self._read, count)

    def _read(self, count: int) -> list[ToGateway]:
        self.theirs.settimeout(10)
        with self.theirs.makefile("rb") as lines:
            return [decode_to_gateway(lines.readline()) for _ in range(count)]


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.channel.close()
    made.theirs.close()


def fleet(version: int, *, models: int = 0) -> FleetSnapshot:
    names = tuple(ModelView(name=f"model-{index}" * 20, aliases=(), created=1) for index in range(models))
    return FleetSnapshot(version=version, models=names, workers=())


async def test_messages_go_out_before_a_waiting_snapshot_and_in_order(pair: Pair) -> None:
    """The configuration is the first thing a gateway process reads, whatever was queued first."""
    configure = Configure(settings_json="{}", slot=0, keys_file="")
    pair.channel.send_snapshot(fleet(1))
    pair.channel.send(configure)
    pair.channel.send(Drain(deadline_s=3))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(pair.channel.run)
            sent = await pair.read(3)
            pair.theirs.shutdown(socket.SHUT_RDWR)

    assert [configure, Drain(deadline_s=3), Snapshot(fleet=fleet(1))] == sent


async def test_of_waiting_snapshots_only_the_newest_is_sent(pair: Pair) -> None:
    """A reader that was slow gets the present, not the past, and a late older version never replaces a newer one."""
    for version in (1, 2, 5, 4):
        pair.channel.send_snapshot(fleet(version))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(pair.channel.run)
            (first,) = await pair.read(1)
            pair.channel.send_snapshot(fleet(6))
            (second,) = await pair.read(1)
            pair.theirs.shutdown(socket.SHUT_RDWR)

    assert [Snapshot(fleet=fleet(5)), Snapshot(fleet=fleet(6))] == [first, second]


async def test_a_reader_that_never_reads_neither_blocks_nor_grows_the_supervisor(pair: Pair) -> None:
    """Ten thousand large snapshots to a deaf process: the sender returns each time and one snapshot is kept."""
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(pair.channel.run)
            for version in range(1, 10_001):
                pair.channel.send_snapshot(fleet(version, models=50))
                if version % 1000 == 0:
                    await anyio.lowlevel.checkpoint()
            for _ in range(MAX_WAITING):
                pair.channel.send(Drain(deadline_s=1))
            with pytest.raises(ChannelBroken):
                pair.channel.send(Drain(deadline_s=1))
            group.cancel_scope.cancel()


async def test_messages_are_delivered_in_order_however_they_are_cut(pair: Pair) -> None:
    """Bytes arrive one by one or many lines at once; the messages are the same."""
    lines = b"".join(encode(Hello(pid=pid)) for pid in range(20))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as group:
            group.start_soon(pair.channel.run)
            for byte in lines[:60]:
                pair.theirs.send(bytes([byte]))
                await anyio.lowlevel.checkpoint()
            pair.theirs.send(lines[60:])
            pair.theirs.shutdown(socket.SHUT_WR)

    assert [Hello(pid=pid) for pid in range(20)] == pair.received


@pytest.mark.parametrize(
    "line",
    [b"no json\n", b"[]\n", b'{"type":"configure","settings_json":"","slot":0,"keys_file":""}\n', b"\n"],
    ids=["no-json", "no-object", "wrong-direction", "empty"],
)
async def test_what_is_no_message_to_the_supervisor_breaks_the_channel(pair: Pair, line: bytes) -> None:
    """Nothing is guessed: the process is to be replaced, and nothing of the line is delivered."""
    pair.theirs.send(line)
    with anyio.fail_after(30), pytest.raises(ChannelBroken):
        await pair.channel.run()

    assert [] == pair.received


async def test_a_line_without_end_breaks_the_channel(pair: Pair) -> None:
    """A process that floods us with one line does not make us hold it all."""

    def flood() -> None:
        try:
            pair.theirs.sendall(b"x" * (4 * MAX_LINE_BYTES))
        except OSError:
            return

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, flood)
            with pytest.raises(ChannelBroken):
                await pair.channel.run()


async def test_the_other_end_closing_ends_run_without_an_error(pair: Pair) -> None:
    """A process that exits is no protocol error, also while something waits to be sent to it."""
    pair.channel.send_snapshot(fleet(1, models=2000))
    pair.theirs.close()
    with anyio.fail_after(30):
        await pair.channel.run()
