"""HTTP/1.1 chunks that need no parser: a read of the socket that holds nothing but whole ones."""

from __future__ import annotations

from typing import Final

_LONGEST: Final = 16 * 1024
LONGEST_LINE: Final = 4 + 2
# As servers write them: no zero, no extension, no leading zero, no upper case. Looking one up is cheaper than `int`,
# which would also take what is no chunk size (a sign, a space, an underscore).
SIZES: Final = {b"%x" % size: size for size in range(1, _LONGEST + 1)}


def whole_chunks(data: bytes) -> bytes | None:
    """
    The body bytes in `data`, iff it consists of whole chunks and none of them is the last.

    None means only that the parser has to look: at anything unusual, and at anything wrong.
    """
    length = len(data)
    pieces: list[bytes] = []
    position = 0
    while True:
        line_end = data.find(b"\r\n", position, position + LONGEST_LINE)
        # Not found is -1, which as the end of a slice would mean something else.
        size = SIZES.get(data[position:line_end]) if line_end > 0 else None
        if size is None:
            return None
        start = line_end + 2
        end = start + size
        if data[end : end + 2] != b"\r\n":
            return None
        position = end + 2
        if position == length:
            return b"".join([*pieces, data[start:end]]) if pieces else data[start:end]
        pieces.append(data[start:end])
