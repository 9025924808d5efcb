"""ShareGPT conversations: texts that people typed, with the answers they got."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtest.datasets.entry import DatasetError, Entry
from loadtest.datasets.json_stream import array_elements

HUMANS, MODELS = ("human", "user"), ("gpt", "chatgpt", "assistant", "bing", "bard")
"""Names of the two sides in the files that are about; a system message is skipped."""


def read_sharegpt(path: Path) -> Iterator[Entry]:
    """
    An array of `{"id", "conversations": [{"from", "value"}]}`: an entry for each question that got an answer.

    Conversations that begin with an answer, as splitting left many, begin with their first question here.

    Raises:
        DatasetError: JSON of another form.
    """
    for number, (line, value) in enumerate(array_elements(path)):
        if not isinstance(value, dict) or not isinstance(value.get("conversations"), list):
            found = json.dumps(value)
            raise DatasetError(path, line, 'an object with a list "conversations"', found)
        session = f"{number}:{value.get('id', '')}"
        question: str | None = None
        for turn in value["conversations"]:
            side, text = _turn(path, line, turn)
            if side in HUMANS:
                question = text if question is None else f"{question}\n{text}"
            elif side in MODELS and question:
                if text:
                    yield Entry(None, None, None, prompt=question, answer=text, session=session)
                question = None


def _turn(path: Path, line: int, turn: Any) -> tuple[str, str]:
    if isinstance(turn, dict) and isinstance(turn.get("from"), str) and isinstance(turn.get("value"), str):
        return turn["from"].lower(), turn["value"]
    raise DatasetError(path, line, 'turns with texts "from" and "value"', json.dumps(turn), "conversations")
