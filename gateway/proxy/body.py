"""Request bodies that arrive compressed, decoded within the size limit: a small body may hold an enormous one."""

from __future__ import annotations

import zlib

from gateway.errors import RequestError

_CHUNK = 256 * 1024


def decode_body(body: bytes, coding: str, limit_bytes: int) -> bytes:
    """
    `body` without its content coding.

    Args:
        coding: Value of Content-Encoding; one of gzip, deflate, zstd and identity.
        limit_bytes: Most bytes that may come out.

    Raises:
        RequestError: 415 unknown coding, 413 more than the limit, 400 not what it says it is.
    """
    name = coding.strip().lower()
    if name in ("", "identity"):
        return body
    if name in ("gzip", "x-gzip"):
        return _inflate(body, 16 + zlib.MAX_WBITS, limit_bytes)
    if name == "deflate":
        # By the standard a zlib stream; some clients send the bare one.
        raw = len(body) < 2 or body[0] & 0x0F != 8 or (body[0] * 256 + body[1]) % 31 != 0
        return _inflate(body, -zlib.MAX_WBITS if raw else zlib.MAX_WBITS, limit_bytes)
    if name == "zstd":
        return _zstd(body, limit_bytes)
    raise RequestError(
        415,
        "The request's Content-Encoding is not supported; use gzip, deflate, zstd or none.",
        code="unsupported_content_encoding",
        should_retry=False,
    )


def _inflate(body: bytes, window: int, limit_bytes: int) -> bytes:
    decoder = zlib.decompressobj(window)
    try:
        decoded = decoder.decompress(body, limit_bytes + 1)
    except zlib.error:
        raise _corrupt() from None
    if len(decoded) > limit_bytes or decoder.unconsumed_tail:
        raise _too_large(limit_bytes)
    if not decoder.eof or decoder.unused_data:
        raise _corrupt()
    return decoded


def _zstd(body: bytes, limit_bytes: int) -> bytes:
    import zstandard  # here: few clients need it, and no gateway process should pay for it at its start

    decoder = zstandard.ZstdDecompressor(max_window_size=8 * 1024 * 1024).decompressobj()
    pieces: list[bytes] = []
    size = 0
    try:
        # In small steps, since one step's output has no limit of its own.
        for start in range(0, len(body), 1024):
            pieces.append(decoder.decompress(body[start : start + 1024]))
            size += len(pieces[-1])
            if size > limit_bytes:
                raise _too_large(limit_bytes)
    except zstandard.ZstdError:
        raise _corrupt() from None
    if not decoder.eof or decoder.unused_data:
        raise _corrupt()
    return b"".join(pieces)


def _corrupt() -> RequestError:
    return RequestError(400, "The request body is not what its Content-Encoding says.", code="invalid_body")


def _too_large(limit_bytes: int) -> RequestError:
    return RequestError(413, f"The decoded request body is larger than {limit_bytes} bytes.", code="request_too_large")
