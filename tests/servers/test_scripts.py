"""Ready-made scripts are well-formed HTTP where they should be, and broken exactly where they should not."""

from __future__ import annotations

import httptools
import pytest

from loadtest.servers import frames, scripts
from loadtest.servers.http1 import LAST_CHUNK, chunk
from loadtest.servers.steps import Gate, Reset, Script, Send


class Parsed:
    """A strict client's view of a script's bytes."""

    def __init__(self, script: Script) -> None:
        self.body, self.complete = b"", False
        parser = httptools.HttpResponseParser(self)
        for step in script:
            if isinstance(step, Send):
                for piece in step.pieces():
                    parser.feed_data(piece)
        self.status = parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete = True


BROKEN = {"reset-mid-stream", "cut-mid-stream"}
SILENT = {"never-answers", "closes-at-once", "resets-at-once"}


@pytest.mark.parametrize("name", sorted(set(scripts.NAMED) - SILENT))
def test_named_scripts_are_complete_http_unless_their_name_says_otherwise(name: str) -> None:
    """A strict parser accepts every byte."""
    assert Parsed(scripts.NAMED[name]).complete == (name not in BROKEN)


def test_a_stream_carries_the_events_unchanged_and_ends_in_one_write_with_done() -> None:
    """The terminating chunk leaves together with [DONE]."""
    script = scripts.chat_stream(["a"])
    last = script[-1]

    assert Parsed(script).body == b"".join(frames.ChatStream().events(["a"]))
    assert isinstance(last, Send)
    assert last.data == chunk(frames.DONE) + LAST_CHUNK


def test_cutting_changes_the_writes_and_not_the_bytes() -> None:
    """One byte per write parses to the same body."""
    events = frames.ChatStream().events(["안녕 😀"])

    assert Parsed(scripts.stream(events, cut_every=1)).body == b"".join(events)
    assert [b"ab", b"c", b"de"] == Send(b"abcde", cuts=(2, 3)).pieces()


def test_steps_stand_where_they_were_put() -> None:
    """Gates between events, the given end instead of the last chunk."""
    events = frames.ChatStream().events(["a"])
    script = scripts.stream(scripts.gated(events[:3], {1: "g"}), end=Reset())

    assert [type(s) for s in script] == [Send, Send, Gate, Send, Send, Reset]
    assert script[2] == Gate("g")


def test_error_shapes_are_kept_apart() -> None:
    """vLLM answers with three different shapes; a relay must be tried against each."""
    assert Parsed(scripts.ERRORS["unauthorized"]).body == b'{"error":"Unauthorized"}'
    assert Parsed(scripts.ERRORS["not-found"]).body == b'{"detail":"Not Found"}'
    assert Parsed(scripts.ERRORS["unknown-model"]).body == (
        b'{"error": {"message": "The model `nope` does not exist.", "type": "NotFoundError", '
        b'"param": "model", "code": 404}}'
    )
