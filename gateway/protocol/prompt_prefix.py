"""The beginning of a prompt as canonical bytes: equal prompts give equal bytes however a client spelt them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

import msgspec

from gateway.types import Family

PREFIX_BYTES = 128 * 1024
"""Bound of a prefix: about 32,000 tokens of text. Agents share tens of kilobytes of system prompt, so a smaller bound
would make all their conversations look alike."""

_UNIT, _RECORD = b"\x1f", b"\x1e"
_ITEMS: msgspec.json.Decoder[list[msgspec.Raw]] = msgspec.json.Decoder(list[msgspec.Raw])
# The longest run of whole characters and escapes that fits: a cut must not split an escape.
_WHOLE = re.compile(rb"(?:[^\\\"]++|\\u[0-9a-fA-F]{4}|\\[^u])*+", re.DOTALL)


class _Turn(msgspec.Struct):
    role: msgspec.Raw = msgspec.Raw(b"null")
    content: msgspec.Raw = msgspec.Raw(b"null")


class _Part(msgspec.Struct):
    text: msgspec.Raw = msgspec.Raw(b"")


_STRING: msgspec.json.Decoder[str] = msgspec.json.Decoder(str)
_TURN: msgspec.json.Decoder[_Turn] = msgspec.json.Decoder(_Turn)
_PART: msgspec.json.Decoder[_Part] = msgspec.json.Decoder(_Part)


def prompt_prefix(family: Family, members: Mapping[str, msgspec.Raw], bound: int = PREFIX_BYTES) -> bytes:
    """
    At most `bound` bytes: for conversations role and text of each turn in order, for prompts their text or token ids.

    A part that is not text (an image, say) counts with its undecoded bytes. A request of no recognisable shape has the
    empty prefix: the worker will say what is wrong with it.
    """
    try:
        if family is Family.CHAT:
            return _conversation(b"", members.get("messages"), bound)
        if family is Family.MESSAGES:
            return _conversation(_text(members.get("system"), bound), members.get("messages"), bound)
        if family is Family.RESPONSES:
            return _conversation(_text(members.get("instructions"), bound), members.get("input"), bound)
        if family is Family.COMPLETIONS:
            return _text(members.get("prompt"), bound)
    except (msgspec.DecodeError, RecursionError):
        return b""
    return b""


def _conversation(head: bytes, turns: msgspec.Raw | None, bound: int) -> bytes:
    pieces = [b"system", _UNIT, head, _RECORD] if head else []
    room = bound - sum(map(len, pieces))
    if turns is not None and bytes(memoryview(turns)[:1]) != b"[":
        pieces += [b"user", _UNIT, _text(turns, max(room, 0)), _RECORD]
        turns = None
    for item in _ITEMS.decode(turns) if turns is not None else ():
        if room <= 0:
            break
        turn = _TURN.decode(item)
        piece = b"".join((_text(turn.role, 64), _UNIT, _text(turn.content, room), _RECORD))
        pieces.append(piece)
        room -= len(piece)
    return b"".join(pieces)[:bound]


def _text(raw: msgspec.Raw | None, room: int) -> bytes:
    """A string's text, a list's texts one after the other, anything else without its white space."""
    if raw is None:
        return b""
    view = memoryview(raw)
    first = bytes(view[:1])
    if first == b'"':
        return _string(view, room)
    if first == b"[" and bytes(view[1:64]).lstrip()[:1] in (b"{", b'"'):
        return _parts(raw, room)
    if first == b"n":
        return b""
    return bytes(view[: 4 * room]).translate(None, b" \t\r\n")[:room]


def _parts(raw: msgspec.Raw, room: int) -> bytes:
    pieces: list[bytes] = []
    for item in _ITEMS.decode(raw):
        if room <= 0:
            break
        if bytes(memoryview(item)[:1]) == b"{":
            text = _PART.decode(item).text
            item = text if memoryview(text).nbytes else item
        piece = _text(item, room) if bytes(memoryview(item)[:1]) == b'"' else bytes(memoryview(item)[:room])
        pieces.append(piece)
        room -= len(piece)
    return b"".join(pieces)


def _string(view: memoryview, room: int) -> bytes:
    """The text of a JSON string, cut to `room` bytes; six bytes of JSON make at least one of text."""
    if view.nbytes <= 6 * room:
        return _STRING.decode(view).encode()[:room]
    cut = bytes(view[1 : 1 + 6 * room])
    if b"\\" not in cut[:room]:
        return cut[:room]
    whole = _WHOLE.match(cut)
    text = b'"' + (whole[0] if whole else b"") + b'"'
    # The cut may have split a character; the surrogates that JSON may hold alone must survive.
    decoded: str = json.loads(text.decode("utf-8", "ignore"), strict=False)
    return decoded.encode("utf-8", "surrogatepass")[:room]
