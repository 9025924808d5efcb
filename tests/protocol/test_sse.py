"""The event splitter: the same events whatever the line ends and cuts, in bounded memory."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.protocol.sse import EVENT_CAP, Event, EventSplitter

ENDS = st.sampled_from([b"\n", b"\r\n", b"\r"])
LINES = st.sampled_from(
    [b"data: {}", b"data:x", b"data", b"data:  y", b": comment", b":", b"event: ping", b"event", b"id: 1",
     b"retry: 5", b"junk",
     b"data: \xe2\x80\xa8\xc2\x85\x0b\x0c", b"", b""]
)  # fmt: skip


@st.composite
def streams(draw: st.DrawFn) -> bytes:
    mark = draw(st.sampled_from([b"", b"\xef\xbb\xbf"]))
    return mark + b"".join(line + draw(ENDS) for line in draw(st.lists(LINES, max_size=12)))


@st.composite
def cuts(draw: st.DrawFn, text: bytes) -> list[bytes]:
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=8)))
    return [text[start:end] for start, end in zip([0, *places], [*places, len(text)], strict=True)]


def reference(text: bytes) -> list[tuple[bytes, bytes]]:
    """The SSE specification read aloud, on the whole text at once."""
    events = []
    name, data = b"", []
    for line in text.removeprefix(b"\xef\xbb\xbf").replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")[:-1]:
        if not line:
            if data:
                events.append((name, b"\n".join(data)))
            name, data = b"", []
            continue
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event" and b":" in line:
            name = value
    return events


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_c10_c11_the_events_do_not_depend_on_cuts_and_line_ends(data: st.DataObject) -> None:
    """Any mixture of LF, CRLF and CR, comments, multi-line data, a byte order mark, cut anywhere."""
    text = data.draw(streams())
    splitter = EventSplitter()

    events = [event for piece in data.draw(cuts(text)) for event in splitter.feed(piece)]

    assert reference(text) == [(event.name, event.data) for event in events]
    assert not any(event.oversized for event in events)


@given(streams())
@settings(deadline=None, max_examples=50)
def test_one_byte_at_a_time_is_enough(text: bytes) -> None:
    """The hardest cut of all."""
    splitter = EventSplitter()

    events = [event for byte in text for event in splitter.feed(bytes([byte]))]

    assert reference(text) == [(event.name, event.data) for event in events]


@pytest.mark.parametrize(
    ("text", "boundary", "idle"),
    [
        (b"", True, True),
        (b"data: x\n\n", True, True),
        (b"data: x\r\n\r", True, False),
        (b": comment\n", True, True),
        (b"data: x\n", False, False),
        (b"d", False, False),
        (b"event: e\n", False, False),
        (b"data: " + b"x" * (EVENT_CAP + 1), False, False),
    ],
)
def test_c14_a_boundary_is_where_no_event_has_begun(text: bytes, boundary: bool, idle: bool) -> None:
    """Only there may a heartbeat be written."""
    splitter = EventSplitter()
    splitter.feed(text)

    assert (boundary, idle) == (splitter.at_boundary, splitter.idle)


@pytest.mark.parametrize("piece", [1, 7, 1000, 10_000])
def test_an_event_beyond_the_cap_is_reported_without_its_data(piece: int) -> None:
    """Its name is kept when it came first; the next event is whole again."""
    text = b"event: big\ndata: " + b"x" * 3000 + b"\n\ndata: y\n\n"
    splitter = EventSplitter(cap=1000)

    events = [event for at in range(0, len(text), piece) for event in splitter.feed(text[at : at + piece])]

    assert [Event(b"big", b"", True), Event(b"", b"y", False)] == events


def test_many_data_lines_beyond_the_cap_are_one_oversized_event() -> None:
    """The cap is on the event, not on the line."""
    splitter = EventSplitter(cap=100)

    assert [Event(b"", b"", True)] == splitter.feed(b"data: 0123456789\n" * 20 + b"\n")


@pytest.mark.parametrize("piece", [10, 100_000])
def test_an_endless_comment_is_no_event(piece: int) -> None:
    """However long, and the event it stands in is not harmed."""
    text = b"data: a\n:" + b"x" * 5000 + b"\ndata: b\n\n"
    splitter = EventSplitter(cap=1000)

    events = [event for at in range(0, len(text), piece) for event in splitter.feed(text[at : at + piece])]

    assert [Event(b"", b"a\nb", False)] == events


def test_the_memory_of_an_endless_line_is_bounded() -> None:
    """Nothing beyond the cap is kept."""
    splitter = EventSplitter(cap=1000)

    for _ in range(1000):
        splitter.feed(b"data: xxxxxxxxxx")

        assert len(splitter._line) <= 1000
        assert not splitter._data
