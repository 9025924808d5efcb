"""Mooncake traces: JSON lines with time, lengths, and the blocks that prompts have in common."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtest.datasets.entry import BLOCK_TOKENS, DatasetError, Entry


def read_mooncake(path: Path) -> Iterator[Entry]:
    """
    One object a line: `timestamp` (milliseconds), `input_length`, `output_length` (tokens), `hash_ids` (one for each
    512 tokens of the prompt, equal for equal beginnings).

    Raises:
        DatasetError: a line that is no such object.
    """
    with path.open("rb") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except ValueError as error:
                raise DatasetError(path, line, "one JSON object", error) from error
            if not isinstance(value, dict):
                raise DatasetError(path, line, "one JSON object", text.decode(errors="replace").strip())
            yield _entry(path, line, value)


def _entry(path: Path, line: int, value: dict[str, Any]) -> Entry:
    prompt = _number(path, line, value, "input_length")
    output = _number(path, line, value, "output_length")
    at_ms = _number(path, line, value, "timestamp")
    blocks = value.get("hash_ids", [])
    if not isinstance(blocks, list) or not all(isinstance(b, int) and not isinstance(b, bool) for b in blocks):
        raise DatasetError(path, line, "a list of whole numbers", json.dumps(blocks), "hash_ids")
    if len(blocks) > -(-int(prompt) // BLOCK_TOKENS):
        expected = f"at most one for each {BLOCK_TOKENS} of {prompt:g} tokens"
        raise DatasetError(path, line, expected, len(blocks), "hash_ids")
    return Entry(at_ms / 1000, int(prompt), int(output), blocks=tuple(blocks))


def _number(path: Path, line: int, value: dict[str, Any], key: str) -> float:
    found = value.get(key)
    if isinstance(found, bool) or not isinstance(found, int | float) or found < 0:
        shown = json.dumps(found) if key in value else "nothing"
        raise DatasetError(path, line, "a number from 0 up", shown, key)
    return found
