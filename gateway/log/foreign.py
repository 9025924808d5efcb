"""Brings the standard library's log (uvicorn, asyncio, OpenTelemetry, defects) into ours."""

from __future__ import annotations

import logging

from gateway.log.events import EventLog


class _EventHandler(logging.Handler):
    def __init__(self, log: EventLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log
        self._formatter = logging.Formatter()

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        fields = {"logger": record.name, "message": _message(record)}
        if record.exc_info is not None and record.exc_info[1] is not None:
            fields["exception"] = self._formatter.formatException(record.exc_info)
        self._log.event("log", level="error" if record.levelno >= logging.ERROR else "warning", **fields)


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception as exc:  # whatever the arguments' own text raises: a poor log line must not fail its caller
        return f"{record.msg} (its arguments do not fit: {type(exc).__name__}: {exc})"


def adopt_foreign_logs(log: EventLog) -> None:
    """From now on the whole process's warnings and errors are events `log`. For a process's composition root alone."""
    root = logging.getLogger()
    root.handlers[:] = [_EventHandler(log)]
    root.setLevel(logging.WARNING)
