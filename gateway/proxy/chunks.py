"""HTTP/1.1 chunks that need no parser: a read of the socket that holds nothing but whole ones."""

from __future__ import annotations

_LONGEST = 16 * 1024
# As servers write them: no zero, no extension, no leading zero, no upper case. Looking one up is cheaper than `int`,
# which would also take what is no chunk size (a sign, a space, an underscore).
_SIZES = {b"%x" % size: size for size in range(1, _LONGEST + 1)}


def whole_chunks(data: bytes) -> bytes | None:
    """
    The body bytes in `data`, iff it consists of whole chunks and none of them is the last.

    None means only that the parser has to look: at anything unusual, and at anything wrong.
    """
    end = data.find(b"\r\n", 1, 8)
    size = _SIZES.get(data[:end])
    if size is None:
        return None
    start = end + 2
    end = start + size
    if data[end : end + 2] != b"\r\n":
        return None
    if len(data) == end + 2:
        return data[start:end]
    pieces = [data[start:end]]
    while end + 2 < len(data):
        line = end + 2
        end = data.find(b"\r\n", line + 1, line + 8)
        size = _SIZES.get(data[line:end])
        if size is None:
            return None
        start = end + 2
        end = start + size
        if data[end : end + 2] != b"\r\n":
            return None
        pieces.append(data[start:end])
    return b"".join(pieces)
