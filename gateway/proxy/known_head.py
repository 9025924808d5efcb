"""The head of a worker's answer, recognised when it comes again."""

from __future__ import annotations

import re
from typing import Final

Headers = list[tuple[bytes, bytes]]

MAX_KNOWN_BODY: Final = 128 * 1024
"""Longest body of an answer whose head need not be parsed: always held as a whole."""

_LENGTH: Final = re.compile(rb"\r\ncontent-length: (\d{1,7})\r\n", re.IGNORECASE)


class KnownHead:
    """
    The head of an answer that came whole in one read. Workers repeat their heads, only the length differs: a head that
    is otherwise byte for byte what the parser has accepted needs no parsing. (The length among `headers` is the first
    answer's: who has the whole body needs none.)

    `lines` is for the owner: what it makes of the headers for the client.
    """

    __slots__ = ("_after", "_before", "headers", "lines")

    def __init__(self, before: bytes, after: bytes, headers: Headers) -> None:
        self._before = before
        self._after = after
        self.headers = headers
        self.lines: bytes | None = None

    @classmethod
    def of(cls, data: bytes, headers: Headers) -> KnownHead | None:
        """The head of the whole answer `data`, None if it cannot be used again."""
        end = data.find(b"\r\n\r\n") + 4
        found = _LENGTH.search(data, 0, end - 2)
        if not data.startswith(b"HTTP/1.1 200 ") or found is None or end + int(found[1]) != len(data):
            return None
        return cls(data[: found.start(1)], data[found.end(1) : end], headers)

    def body_of(self, data: bytes) -> bytes | None:
        """The body, iff `data` is a whole answer with this head and nothing else; an empty one is not looked at."""
        before, after = self._before, self._after
        if not data.startswith(before):
            return None
        begin = len(before)
        end = data.find(b"\r", begin, begin + 8)
        if end < 0 or not data.startswith(after, end):
            return None
        digits = data[begin:end]
        body = data[end + len(after) :]
        return body if 0 < len(body) <= MAX_KNOWN_BODY and digits.isdigit() and int(digits) == len(body) else None
