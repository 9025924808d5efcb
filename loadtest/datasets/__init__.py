"""Files of recorded load: traces and conversations, read as they stream by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from loadtest.datasets.csv_traces import AZURE_COLUMNS, BURSTGPT_COLUMNS, read_azure, read_burstgpt
from loadtest.datasets.entry import DatasetError, Entry
from loadtest.datasets.mooncake import read_mooncake
from loadtest.datasets.sharegpt import read_sharegpt

Reader = Callable[[Path], Iterator[Entry]]

FORMATS: Mapping[str, Reader] = MappingProxyType(
    {"azure": read_azure, "burstgpt": read_burstgpt, "mooncake": read_mooncake, "sharegpt": read_sharegpt}
)
"""Every format by the name it is given by."""


def recognise(path: Path) -> str:
    """
    The format of a file, by its beginning.

    Raises:
        DatasetError: it is none of them, or cannot be opened.
    """
    try:
        with path.open("rb") as file:
            head = file.readline(65_536).decode("utf-8-sig", errors="replace").strip()
    except OSError as error:
        raise DatasetError(path, None, "a file that can be read", error.strerror) from error
    columns = {name.strip().strip('"') for name in head.split(",")}
    if columns.issuperset(AZURE_COLUMNS):
        return "azure"
    if columns.issuperset(BURSTGPT_COLUMNS):
        return "burstgpt"
    if head.startswith("["):
        return "sharegpt"
    try:
        if "input_length" in json.loads(head):
            return "mooncake"
    except (ValueError, TypeError):
        pass  # no JSON line either: told below with what is there
    raise DatasetError(path, 1, f"one of the formats {', '.join(FORMATS)}", repr(head[:60]) if head else "nothing")
