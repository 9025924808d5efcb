"""What every trace and conversation file comes down to, and what is said when a file is not what it should be."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtest.target import UsageError

BLOCK_TOKENS = 512
"""Tokens that one entry of a Mooncake trace's `hash_ids` stands for."""


@dataclass(frozen=True, slots=True)
class Entry:
    """
    One request of a file. `at_s` counts from the file's own origin; None where it tells no time.

    Lengths are in tokens of the model that was recorded; None where the file has the texts instead (`prompt`,
    `answer`). Entries of one `session` belong to one conversation. `blocks` name pieces of `BLOCK_TOKENS` each, from
    the start of the prompt on: equal names are equal text.
    """

    at_s: float | None
    prompt_tokens: int | None
    output_tokens: int | None
    prompt: str | None = None
    answer: str | None = None
    session: str | None = None
    blocks: tuple[int, ...] = ()


class DatasetError(UsageError):
    """A file that cannot be read as what it should be; says where, what was expected and what was found."""

    def __init__(self, path: Path, line: int | None, expected: str, found: object, column: str | None = None) -> None:
        where = f"{path}" + (f", line {line}" if line is not None else "") + (f", {column}" if column else "")
        shown = str(found) if len(str(found)) <= 80 else str(found)[:80] + "..."
        super().__init__(f"{where}: expected {expected}, found {shown}")
