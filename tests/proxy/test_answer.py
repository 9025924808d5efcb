"""What becomes of a worker's bytes between two sockets, for any way they are cut."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from math import inf
from types import SimpleNamespace

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.gaps import TokenGaps
from gateway.proxy.answer import HOLD_LIMIT, PARTIAL_LIMIT, Answer
from gateway.proxy.chunks import whole_chunks
from gateway.proxy.direct import ChunkWriter
from gateway.proxy.processor_yield import ProcessorYield
from gateway.proxy.upstream import UpstreamConnection
from gateway.types import Family
from loadtest.servers import frames

EVENTS = frames.ChatStream().events(["안녕", "😀", "\r\n escaped"])


class Socket(asyncio.Transport):
    """The socket of the worker's connection."""

    def __init__(self) -> None:
        super().__init__()
        self.reading = True

    def write(self, data: object) -> None: ...

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Quiet:
    """A lease that nobody looks at."""

    def progress(self, now_s: float) -> None: ...


class Client:
    """A client's transport that keeps what is written; `room` writes fit into its buffer."""

    def __init__(self, room: int = 10**9) -> None:
        self.written: list[bytes] = []
        self.room = room
        self.writer = ChunkWriter(SimpleNamespace(write=self._write_framed))

    def write(self, data: bytes) -> bool:
        self.written.append(data)
        self.room -= 1
        if self.room <= 0:
            self.writer.full()
        return self.room > 0

    def _write_framed(self, data: bytes) -> None:
        body = whole_chunks(data)
        assert body is not None
        self.write(body)


def answer_on(connection: UpstreamConnection, give_way: Callable[[], None] = lambda: None) -> Answer:
    """An answer that offers the processor after every read."""
    gaps = TokenGaps((), lambda counts, total_s: None)
    processor = ProcessorYield(give_way, lambda: 0.0, turn_s=0.0, pause_s=inf)
    return Answer(connection, Quiet(), gaps, processor, lambda: None)  # type: ignore[arg-type]


def new_answer(*, drop_usage: bool = False) -> tuple[Answer, Socket]:
    socket = Socket()
    connection = UpstreamConnection()
    connection.connection_made(socket)
    answer = answer_on(connection)
    answer.observe(Family.CHAT, 1, drop_usage=drop_usage)
    connection.send(answer, b"", b"")
    answer.on_head(200, [(b"content-type", b"text/event-stream")])
    return answer, socket


def cut(data: bytes, at: list[int]) -> list[bytes]:
    edges = sorted({0, len(data), *(position % (len(data) + 1) for position in at)})
    return [data[a:b] for a, b in pairwise(edges)]


@example(cuts=[10], line_end=b"\n", commit_after=0, direct=False)
@given(
    st.lists(st.integers(0, 10**6), max_size=60),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.integers(0, 70),
    st.booleans(),
)
def test_bytes_in_are_bytes_out(cuts: list[int], line_end: bytes, commit_after: int, direct: bool) -> None:
    """Whatever the cuts and line ends, and whenever the answer is passed on: the same bytes, in whole events."""
    whole = b"".join([b": comment\n\n", *EVENTS]).replace(b"\n", line_end)
    answer, _ = new_answer()
    client = Client()
    out: list[bytes] = []
    for number, piece in enumerate(cut(whole, cuts)):
        if number == commit_after and direct:
            out.append(answer.take())
            answer.write_directly(client)  # type: ignore[arg-type]
        answer.on_data(piece)
        if number >= commit_after and not direct:
            out.append(answer.take())
    answer.on_complete()
    rest = answer.take_rest(keep_done=True)

    assert whole == b"".join([*out, *client.written, rest])
    # A comment's own line is whole without a blank line behind it: nothing of an event has begun.
    ends = (line_end + line_end, b": comment" + line_end)
    assert all(piece.endswith(ends) or piece == b"" for piece in [*out, *client.written] if not _ends_in_cr(piece))
    assert answer.tokens == 3


def _ends_in_cr(piece: bytes) -> bool:
    """Cut between the CR and the LF of a line end, where an event is complete already."""
    return piece.endswith(b"\r")


@given(st.lists(st.integers(0, 10**6), max_size=60))
def test_only_the_usage_event_is_left_out(cuts: list[int]) -> None:
    """Usage that the client did not ask for is read and dropped; the rest passes byte for byte."""
    answer, _ = new_answer(drop_usage=True)
    out = []
    for piece in cut(b"".join(EVENTS), cuts):
        answer.on_data(piece)
        out.append(answer.take())
    answer.on_complete()
    out.append(answer.take_rest(keep_done=True))

    assert b"".join(event for event in EVENTS if b'"usage"' not in event) == b"".join(out)
    assert answer.observer is not None
    assert answer.observer.output_tokens == 3


def test_a_held_stream_is_bounded() -> None:
    """A client that takes nothing stops the reading of its worker."""
    answer, socket = new_answer()
    event = frames.ChatStream().content("x" * 1000)
    sent = 0
    while socket.reading:
        answer.on_data(event)
        sent += len(event)

    assert sent <= HOLD_LIMIT + len(event)
    assert answer.take() == event * (sent // len(event))
    assert socket.reading


def test_a_partial_event_is_bounded() -> None:
    """An event beyond the limit is passed on in pieces, and said to be in the middle of one."""
    answer, _ = new_answer()
    answer.on_data(EVENTS[0])
    answer.on_data(b"data: " + b"x" * (PARTIAL_LIMIT + 1))

    assert answer.mid_event
    assert len(answer.take()) > PARTIAL_LIMIT
    answer.on_data(b'"}\n\n')
    assert not answer.mid_event


def test_a_full_client_stops_the_worker_until_it_drains() -> None:
    """Back-pressure between two transports."""
    answer, socket = new_answer()
    answer.on_data(EVENTS[0])
    answer.take()
    answer.write_directly(Client(room=2))  # type: ignore[arg-type]
    answer.on_data(EVENTS[1])
    assert socket.reading
    answer.on_data(EVENTS[2])

    assert not socket.reading
    assert answer.stalled_at is not None
    answer.writable()
    assert socket.reading
    assert answer.stalled_at is None


def test_what_one_stream_has_taught_the_next_ones_of_its_worker_know() -> None:
    """Learning takes two decodings of an event, which each stream would cost."""
    connection, decoded = UpstreamConnection(), []
    connection.connection_made(Socket())
    for identity in ("chatcmpl-1", "chatcmpl-22", "chatcmpl-333"):
        events = frames.ChatStream(id=identity).events(["a", "b"])
        answer = answer_on(connection)
        answer.observe(Family.CHAT, 1, drop_usage=False)
        answer.on_head(200, [(b"content-type", b"text/event-stream")])
        answer.on_data(events[0])
        answer.take()
        client = Client()
        answer.write_directly(client)  # type: ignore[arg-type]
        answer.on_data(b": now between two events\n\n")
        for event in events[1:3]:
            assert answer.pass_through(b"%x\r\n%b\r\n" % (len(event), event))
        assert answer.observer is not None
        assert (answer.events, answer.tokens) == (3, 2)
        assert client.written[1:] == events[1:3]
        decoded.append(answer.observer.events)

    assert decoded == [2, 2, 1]  # the second stream shows that it is a kind


def test_a_full_client_stops_the_worker_on_the_short_way_too() -> None:
    """There nobody asks after each write: the client's side tells when its buffer becomes full."""
    answer, socket = new_answer()
    answer.on_data(EVENTS[0])
    answer.take()
    client = Client(room=3)
    answer.write_directly(client)  # type: ignore[arg-type]
    answer.on_data(EVENTS[1])
    event = b"%x\r\n%b\r\n" % (len(EVENTS[1]), EVENTS[1])

    assert answer.pass_through(event)
    assert socket.reading
    assert answer.pass_through(event)
    assert not socket.reading
    assert answer.stalled_at is not None

    client.writer.drained()
    answer.writable()
    assert socket.reading
    assert answer.events == 4
    assert client.written == [EVENTS[1]] * 3


def test_others_are_let_in_when_an_event_has_been_written() -> None:
    """Who waits for the processor may be the client that the event is for."""
    connection = UpstreamConnection()
    connection.connection_made(Socket())
    client = Client()
    seen: list[int] = []
    answer = answer_on(connection, lambda: seen.append(len(client.written)))
    answer.observe(Family.CHAT, 1, drop_usage=False)
    answer.on_head(200, [(b"content-type", b"text/event-stream")])
    answer.on_data(EVENTS[0])
    answer.take()
    answer.write_directly(client)  # type: ignore[arg-type]
    answer.on_data(EVENTS[1])
    for event in EVENTS[1:3]:
        assert answer.pass_through(b"%x\r\n%b\r\n" % (len(event), event))

    assert seen == [0, 1, 2, 3]
    assert client.written == [EVENTS[1], EVENTS[1], EVENTS[2]]


def test_a_client_that_becomes_full_after_the_answer_stops_nobody() -> None:
    """The end of the response is written, too, when another request may have the worker's connection already."""
    answer, socket = new_answer()
    answer.on_data(EVENTS[0])
    answer.take()
    client = Client()
    answer.write_directly(client)  # type: ignore[arg-type]
    answer.on_data(b"".join(EVENTS[1:]))
    answer.on_complete()

    client.writer.full()

    assert socket.reading
    assert answer.stalled_at is None


def test_a_client_that_is_full_at_the_end_of_the_answer_stops_nobody() -> None:
    """A worker may end its message while the client takes the first piece."""
    answer, socket = new_answer()
    answer.on_data(b"".join(EVENTS))
    answer.on_complete()
    client = Client()
    client.writer.full()

    answer.write_directly(client)  # type: ignore[arg-type]

    assert socket.reading
    assert answer.stalled_at is None


def test_a_client_that_is_full_already_stops_the_worker() -> None:
    """What filled its buffer was written before, by another way."""
    answer, socket = new_answer()
    answer.on_data(EVENTS[0])
    answer.take()
    client = Client()
    client.writer.full()

    answer.write_directly(client)  # type: ignore[arg-type]

    assert not socket.reading


def test_what_follows_the_marker_does_not_put_off_the_end() -> None:
    """After its terminal marker a worker has a moment to end the message; going on sending must not prolong that."""
    answer, _ = new_answer()
    answer.on_data(b"".join(EVENTS))
    ended_at = answer.last_at
    assert answer.done

    answer.on_data(b"data: half an event")

    assert ended_at == answer.last_at
