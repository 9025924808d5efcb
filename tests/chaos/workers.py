"""
Workers at their worst: what a worker does to a request is drawn from the seed, the request's number and the attempt, so
that it is the same in every run, however the requests interleave.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Any

from loadtest.servers import frames, scripts
from loadtest.servers.http1 import response_head
from loadtest.servers.message_frames import MessagesStream, ResponsesStream, messages_error
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Fin, HalfClose, Reset, Script, Send, Sleep, Stall, Step

CALM = "calm"
"""The number of a request that every worker serves well."""


class ChaoticWorkers:
    """`script` is what every server of one gateway plays."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._attempts: Counter[str] = Counter()

    def script(self, request: RecordedRequest) -> Script:
        """One answer."""
        body = request.json()
        number = body["user"]
        self._attempts[number] += 1
        dice = Random(f"{self._seed} worker {number} {self._attempts[number]}")
        events, plain = _good(request.path, dice, 8 if number == CALM else dice.choice((1, 8, 8, 40, 400)))
        if number == CALM:
            return scripts.stream(events) if body.get("stream") else plain
        if dice.random() < 0.65:
            return _well(dice, events) if body.get("stream") else _well_plain(dice, plain)
        return dice.choice(_FAULTS)(dice, events if body.get("stream") else [], request.path)


def _good(path: str, dice: Random, tokens: int) -> tuple[list[bytes], Script]:
    """Events and the whole body of a proper answer of a route."""
    words = [dice.choice((" a", " longer", " naïve", "\u2028", "x" * 300)) for _ in range(tokens)]
    match path:
        case "/v1/completions":
            return frames.CompletionStream().events(words), scripts.completion_json("".join(words))
        case "/v1/responses":
            return ResponsesStream().events(words), scripts.responses_json("".join(words))
        case "/v1/messages":
            return MessagesStream().events(words), scripts.messages_json("".join(words))
        case "/v1/embeddings":
            return [], scripts.embeddings_json()
        case "/v1/messages/count_tokens":
            return [], scripts.answer(200, {"input_tokens": tokens})
    return frames.ChatStream().events(words), scripts.chat_json("".join(words))


def _well(dice: Random, events: list[bytes]) -> Script:
    """A whole stream, in odd pieces, at odd speeds, with comments."""
    if dice.random() < 0.3:
        events = [event for event in events for event in (event, frames.KEEP_ALIVE)][:-1]
    pace: list[bytes | Step] = list(events)
    if dice.random() < 0.3:
        for _ in range(3):
            pace.insert(dice.randrange(len(pace)), Sleep(dice.random() * 0.03))
    cut = dice.choice((0, 0, 0, 700, 61)) if len(events) < 100 else 0
    whole = scripts.stream(pace, cut_every=cut, glue_last=dice.random() < 0.7)
    return (*whole, *dice.choice(_AFTERMATHS))


def _well_plain(dice: Random, plain: Script) -> Script:
    """A whole answer, in pieces, late."""
    (send,) = plain
    assert isinstance(send, Send)
    late = [Sleep(dice.random() * 0.05)] if dice.random() < 0.3 else []
    return (*late, Send(send.data, every=dice.choice((0, 0, 97))), *dice.choice(_AFTERMATHS))


_AFTERMATHS: tuple[Script, ...] = (
    (),
    (),
    (),
    (),
    (Fin(),),
    (Reset(),),
    (HalfClose(), Stall(), Fin()),
    (Sleep(0.005), Fin()),
)
"""What becomes of the connection after a whole answer."""


def _status(dice: Random, events: list[bytes], path: str) -> Script:
    return dice.choice(list(scripts.ERRORS.values()))


def _early_end(dice: Random, events: list[bytes], path: str) -> Script:
    return (dice.choice((Fin(), Reset(), Stall(), HalfClose())),)


def _half_a_head(dice: Random, events: list[bytes], path: str) -> Script:
    head = response_head(200, (("content-type", "text/event-stream"), ("transfer-encoding", "chunked")))
    return (Send(head[: dice.randrange(1, len(head))]), dice.choice((Fin(), Reset(), Stall())))


def _half_a_body(dice: Random, events: list[bytes], path: str) -> Script:
    head = response_head(200, (("content-type", "application/json"), ("content-length", "1000")))
    return (Send(head + b'{"id":' + b" " * dice.randrange(500)), dice.choice((Fin(), Reset(), Stall())))


def _noise(dice: Random, events: list[bytes], path: str) -> Script:
    return (Send(dice.randbytes(dice.randrange(1, 400))), dice.choice((Fin(), Reset())))


def _cut(dice: Random, events: list[bytes], path: str) -> Script:
    return scripts.stream(
        events[: dice.randrange(len(events) + 1)], end=dice.choice((Fin(), Reset(), Stall(), HalfClose()))
    )


def _mid_event(dice: Random, events: list[bytes], path: str) -> Script:
    end = dice.choice((Fin(), Reset(), None))
    # A clean end is only for an answer that has said nothing: one that has finished is complete without its marker.
    data = b"".join(events if end is not None else events[:1]) or b"data: {"
    return scripts.stream([data[: dice.randrange(1, len(data))]], end=end)


def _unfinished(dice: Random, events: list[bytes], path: str) -> Script:
    return scripts.clean_truncation(events[: dice.randrange(max(len(events) - 3, 1))])


def _in_band(dice: Random, events: list[bytes], path: str) -> Script:
    event = messages_error("The engine died.") if path == "/v1/messages" else frames.error_event()
    said = min(dice.choice((0, 0, 1, 3, 5)), max(len(events) - 3, 0))
    return scripts.in_band_error(events[:said], event)


def _two_answers(dice: Random, events: list[bytes], path: str) -> Script:
    (send,) = scripts.chat_json("Twice.")
    assert isinstance(send, Send)
    return (Send(send.data + send.data),)


_FAULTS: tuple[Any, ...] = (
    _status,
    _status,
    _early_end,
    _half_a_head,
    _half_a_body,
    _noise,
    _cut,
    _cut,
    _mid_event,
    _unfinished,
    _in_band,
    _in_band,
    _two_answers,
)
