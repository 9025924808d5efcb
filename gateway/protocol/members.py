"""The top-level members of a JSON object: which there are, and where they lie in the bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import islice
from typing import NamedTuple

import msgspec

from gateway.errors import RequestError


class Member(NamedTuple):
    """One `"key": value` of an object; offsets into the body, `start` at the key's quote, `end` after the value."""

    key: str
    start: int
    value: int
    end: int


_SPACE = rb"[ \t\r\n]*+"
_STRING = rb'"(?:[^"\\]++|\\.)*+"'
_OPEN = re.compile(_SPACE + rb"\{" + _SPACE)
_KEY = re.compile(_SPACE + rb"(" + _STRING + rb")" + _SPACE + rb":" + _SPACE, re.DOTALL)
_AFTER_VALUE = re.compile(_SPACE + rb"([,}])")
_STRING_VALUE = re.compile(_STRING, re.DOTALL)
_SCALAR = re.compile(rb"[^ \t\r\n,\]}]++")
_TOKEN = re.compile(_STRING + rb"|[\[\]{}]", re.DOTALL)
_SKIP_TOKENS = 100_000

# What Python's decoder takes (and so vLLM), and ours does not.
_LENIENT = re.compile(_STRING + rb"|-?Infinity|NaN", re.DOTALL)
_SURROGATE = re.compile(rb"\\(?:u[dD][89a-fA-F][0-9a-fA-F]{2}|.)", re.DOTALL)
_LENIENT_TOKENS = 200_000

_MEMBERS: msgspec.json.Decoder[dict[str, msgspec.Raw]] = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_members(body: bytes) -> dict[str, msgspec.Raw]:
    """
    The members of an object with their values undecoded; of equal keys the last, as vLLM reads them.

    Lone surrogates in strings and NaN or Infinity are let through where vLLM lets them through: the values that hold
    them then differ from the body in those places only, with the same lengths.

    Raises:
        msgspec.DecodeError: Not JSON, or (ValidationError) not an object.
        RecursionError: Nested deeper than the interpreter's stack; `check_structure` comes before.
    """
    try:
        return _MEMBERS.decode(body)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        lenient = _made_strict(body)
        if lenient is None:
            raise
        return _MEMBERS.decode(lenient)


def _made_strict(body: bytes) -> bytes | None:
    """`body` with what strict JSON forbids replaced by as many harmless bytes; None when there is nothing of it."""
    surrogates = b"\\ud" in body or b"\\uD" in body
    if not surrogates and b"NaN" not in body and b"Infinity" not in body:
        return None
    if body.count(b'"') > _LENIENT_TOKENS:
        return None

    def replace(match: re.Match[bytes]) -> bytes:
        token = match[0]
        if token[:1] != b'"':
            return b"0".ljust(len(token))
        return _SURROGATE.sub(_replace_surrogate, token) if b"\\u" in token else token

    return _LENIENT.sub(replace, body)


def _replace_surrogate(match: re.Match[bytes]) -> bytes:
    return b"\\ufffd" if len(match[0]) == 6 else match[0]


def scan_members(body: bytes, members: Mapping[str, msgspec.Raw]) -> list[Member]:
    """
    Where the members of `body` lie, in order, repeated keys included.

    `members` is what `decode_members` found. Its values let the scan jump over whole values at memory speed: a value
    that stands at the expected place byte for byte, followed by a comma or the end, is the value.

    Raises:
        RequestError: 400, when a repeated key hides a value too large to step over cheaply.
    """
    found: list[Member] = []
    opened = _expect(_OPEN.match(body))
    position = opened.end()
    if body[position : position + 1] == b"}":
        return found
    while True:
        key_match = _expect(_KEY.match(body, position))
        key, value = _key(key_match[1]), key_match.end()
        raw = members.get(key)
        after = None
        if raw is not None and body.startswith(raw, value):
            after = _AFTER_VALUE.match(body, value + memoryview(raw).nbytes)
        end = value + memoryview(raw).nbytes if after is not None and raw is not None else _skip_value(body, value)
        if after is None:
            after = _expect(_AFTER_VALUE.match(body, end))
        found.append(Member(key, key_match.start(1), value, end))
        if after[1] == b"}":
            return found
        position = after.end()


def _expect(match: re.Match[bytes] | None) -> re.Match[bytes]:
    if match is None:
        raise RequestError(400, "The request body must be one JSON object.", code="invalid_json")
    return match


def _key(quoted: bytes) -> str:
    if b"\\" not in quoted:
        return quoted[1:-1].decode()
    return str(json.loads(quoted))


def _skip_value(body: bytes, start: int) -> int:
    """The end of the value at `start`, token by token; only for values that a later equal key overrides."""
    first = body[start : start + 1]
    if first == b'"':
        return _expect(_STRING_VALUE.match(body, start)).end()
    if first not in (b"[", b"{"):
        return _expect(_SCALAR.match(body, start)).end()
    depth = 0
    for token in islice(_TOKEN.finditer(body, start), _SKIP_TOKENS):
        kind = body[token.start()]
        if kind in b"[{":
            depth += 1
        elif kind in b"]}":
            depth -= 1
            if depth == 0:
                return token.end()
    raise RequestError(400, "The request body repeats a top-level key.", code="invalid_json", should_retry=False)
