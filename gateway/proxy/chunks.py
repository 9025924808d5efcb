"""HTTP/1.1 chunks that need no parser: a read of the socket that holds nothing but whole ones."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 16 * 1024
_MOST_DIGITS: Final = 4
_CR: Final = 13
_LF: Final = 10


def chunk_at(data: bytes, position: int) -> tuple[int, int]:
    """
    Where the body of the chunk that begins at `position` begins and ends.

    (0, 0) unless it is whole, not the last one, not long, and its size is spelt as servers spell it: no extension, no
    leading zero, no upper case. Then the parser has to look: at anything unusual, and at anything wrong.
    """
    length = len(data)
    size = 0
    at = position
    while at < length and at - position < _MOST_DIGITS:
        byte = data[at]
        if 48 <= byte <= 57:
            digit = byte - 48
        elif 97 <= byte <= 102:
            digit = byte - 87
        else:
            break
        if digit == 0 and size == 0:
            return 0, 0
        size = (size << 4) + digit
        at += 1
    start = at + 2
    end = start + size
    if (
        size == 0
        or size > _LONGEST
        or end + 2 > length
        or data[at] != _CR
        or data[at + 1] != _LF
        or data[end] != _CR
        or data[end + 1] != _LF
    ):
        return 0, 0
    return start, end


def whole_chunks(data: bytes) -> bytes | None:
    """The body bytes in `data`, iff it consists of chunks that `chunk_at` knows."""
    pieces: list[bytes] = []
    position = 0
    length = len(data)
    while position < length:
        start, end = chunk_at(data, position)
        if not end:
            return None
        pieces.append(data[start:end])
        position = end + 2
    return b"".join(pieces) if pieces else None
