"""Reading the elements of a JSON array one at a time: conversation files have hundreds of megabytes in one array."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtest.datasets.entry import DatasetError

_PIECE = 1 << 20
_LONGEST = 32 << 20
"""Characters of one element at most: a mistake near the beginning must not read the whole file into memory."""
_SPACE = " \t\r\n"


def array_elements(path: Path) -> Iterator[tuple[int, Any]]:
    """
    The elements of the file's one array, each with the line it begins in.

    Raises:
        DatasetError: another kind of JSON, or none.
    """
    with path.open(encoding="utf-8-sig") as file:
        try:
            yield from _Reader(path, iter(lambda: file.read(_PIECE), "")).elements()
        except UnicodeDecodeError as error:
            raise DatasetError(path, None, "JSON in UTF-8", error) from error


class _Reader:
    """A window on the text, with the line its start is in."""

    def __init__(self, path: Path, pieces: Iterator[str]) -> None:
        self._path, self._pieces = path, pieces
        self._text, self._at, self._line = "", 0, 1
        self._decoder = json.JSONDecoder()

    def elements(self) -> Iterator[tuple[int, Any]]:
        first = self._next_character()
        if first != "[":
            raise DatasetError(self._path, self._line, "a JSON array", repr(first) if first else "an empty file")
        self._advance(1)
        if self._next_character() == "]":
            return
        while True:
            self._next_character()
            line = self._line
            yield line, self._element()
            after = self._next_character()
            if after == "]":
                return
            if after != ",":
                raise DatasetError(
                    self._path, self._line, "',' or ']' after an element", repr(after) if after else "the end"
                )
            self._advance(1)

    def _element(self) -> Any:
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._at)
            except ValueError as error:
                if len(self._text) - self._at > _LONGEST or not self._more():
                    raise DatasetError(self._path, self._line, "a JSON value", error) from error
                continue
            # A number at the very end of the window may go on in the next piece.
            if end < len(self._text) or not self._more():
                self._advance(end - self._at)
                return value

    def _next_character(self) -> str:
        """Skips space; an empty string at the end of the file."""
        while True:
            while self._at < len(self._text) and self._text[self._at] in _SPACE:
                self._advance(1)
            if self._at < len(self._text):
                return self._text[self._at]
            if not self._more():
                return ""

    def _advance(self, count: int) -> None:
        self._line += self._text.count("\n", self._at, self._at + count)
        self._at += count

    def _more(self) -> bool:
        piece = next(self._pieces, "")
        self._text, self._at = self._text[self._at :] + piece, 0
        return bool(piece)
