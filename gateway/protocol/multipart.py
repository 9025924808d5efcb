"""Reading two small form fields out of a multipart body (audio uploads) without touching the file in it."""

from __future__ import annotations

import re
from typing import NamedTuple

from gateway.errors import RequestError


class FormField(NamedTuple):
    """A field's value and where it lies in the body."""

    value: bytes
    start: int
    end: int


_BOUNDARY = re.compile(r';[ \t]*boundary=(?:"((?:[^"\\]|\\.){1,70})"|([^\s;,"]{1,70}))', re.IGNORECASE)
_AFTER_BOUNDARY = re.compile(rb"(?:(--)|[ \t]*\r\n)")
_NAME = re.compile(
    rb'^content-disposition:[^\r\n]*?;[ \t]*name=(?:"([^"\r\n]*)"|([^\s;"]+))', re.IGNORECASE | re.MULTILINE
)
_FILENAME = re.compile(rb"^content-disposition:[^\r\n]*?;[ \t]*filename\*?=", re.IGNORECASE | re.MULTILINE)
_MAX_HEAD = 8 * 1024
_MAX_PARTS = 1000
_MAX_VALUE = 1024


def boundary_of(content_type: str) -> bytes:
    """The boundary that the header names. Raises RequestError (400) without a usable one."""
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise _malformed("its content-type names no boundary of 1 to 70 characters")
    quoted: str | None = match[1]
    boundary = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else match[2]
    return boundary.encode("latin-1", "replace")


def read_fields(body: bytes, content_type: str, wanted: frozenset[str]) -> dict[str, FormField]:
    """
    The wanted fields of a form, wherever they stand; files are stepped over.

    Raises:
        RequestError: 400, when the form is malformed, or names a wanted field twice or with an overlong value.
    """
    delimiter = b"\r\n--" + boundary_of(content_type)
    # The first delimiter may stand at the very start, without the line end before it.
    position = len(delimiter) - 2 if body.startswith(delimiter[2:]) else _next_delimiter(body, delimiter, 0)[1]
    found: dict[str, FormField] = {}
    for _ in range(_MAX_PARTS):
        after = _AFTER_BOUNDARY.match(body, position)
        if after is None:
            raise _malformed("a boundary is not followed by a line end")
        if after[1] is not None:
            return found
        # A part without headers begins with its blank line right away.
        head_end = body.find(b"\r\n\r\n", after.end() - 2, after.end() + _MAX_HEAD)
        if head_end < 0:
            raise _malformed(f"a part's headers have no end within {_MAX_HEAD} bytes")
        end, position = _next_delimiter(body, delimiter, head_end + 2)
        head = body[after.end() : max(after.end(), head_end)]
        name_match = _NAME.search(head)
        if name_match is None or _FILENAME.search(head) is not None:
            continue
        name = (name_match[1] or name_match[2] or b"").decode("utf-8", "replace")
        if name not in wanted:
            continue
        if name in found:
            raise RequestError(
                400, f"The form names the field '{name}' more than once.", code="duplicate_field", param=name
            )
        start = head_end + 4
        # The blank line of a field without a value is the delimiter's own line end, too.
        end = max(start, end)
        if end - start > _MAX_VALUE:
            raise RequestError(
                400, f"The form field '{name}' is longer than {_MAX_VALUE} bytes.", code="invalid_value", param=name
            )
        found[name] = FormField(body[start:end], start, end)
    raise _malformed(f"it has more than {_MAX_PARTS} parts")


def _next_delimiter(body: bytes, delimiter: bytes, position: int) -> tuple[int, int]:
    """Where the part ends and where the text after the next delimiter begins."""
    while (end := body.find(delimiter, position)) >= 0:
        after = end + len(delimiter)
        # Content may hold the delimiter as the beginning of something longer.
        if _AFTER_BOUNDARY.match(body, after) is not None:
            return end, after
        position = after
    raise _malformed("its last boundary is missing")


def _malformed(found: str) -> RequestError:
    return RequestError(400, f"The multipart body is malformed: {found}.", code="invalid_multipart")
