"""What libraries log comes out as events of ours, in one stream of whole lines."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator

import pytest

from gateway.clock import SystemClock
from gateway.log import EventLog, adopt_foreign_logs


@pytest.fixture(autouse=True)
def root() -> Iterator[logging.Logger]:
    """The root logger, as it was before afterwards."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield root
    root.handlers[:] = handlers
    root.setLevel(level)


def test_warnings_and_defects_of_libraries_are_events(root: logging.Logger) -> None:
    """With their logger's name, and the traceback on the same line; chatter is left out."""
    lines: list[bytes] = []
    adopt_foreign_logs(EventLog(lines.append, SystemClock()))
    logger = logging.getLogger("other.package")
    logger.info("chatter")
    logger.warning("%s is odd", "this")
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logger.exception("it broke")

    odd, broke = map(json.loads, lines)
    assert ("log", "warning", "other.package", "this is odd") == (
        odd["event"],
        odd["level"],
        odd["logger"],
        odd["message"],
    )
    assert ("log", "error", "it broke") == (broke["event"], broke["level"], broke["message"])
    assert "ValueError: two\nlines" in broke["exception"]
    assert 1 == len(root.handlers)


def test_a_librarys_wrong_log_call_is_logged_and_does_not_fail_the_library(root: logging.Logger) -> None:
    """As the standard library's own handlers do it: the caller is not to blame for a format that does not fit."""
    lines: list[bytes] = []
    adopt_foreign_logs(EventLog(lines.append, SystemClock()))
    logging.getLogger("other.package").warning("%d requests", "many")

    (odd,) = map(json.loads, lines)
    assert odd["message"].startswith("%d requests (its arguments do not fit: TypeError")
