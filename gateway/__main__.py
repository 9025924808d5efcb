"""
The `gateway` command, also as `python -m gateway`.

The command's own modules take half a second to import; an interrupt during that time is told like any other.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import NoReturn

INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script."""
    interrupts: list[int] = []

    def interrupted(number: int, frame: FrameType | None) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    ours = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if ours:
            signal.signal(signal.SIGINT, interrupted)
        from gateway.cli import main as command

        if ours:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        command()
    except KeyboardInterrupt:
        _tell()
    except ImportError:
        # An interrupt inside the import of a C extension arrives as an import that failed.
        if not interrupts:
            raise
        _tell()
    except SystemExit as exc:
        if exc.code == INTERRUPTED:
            _leave()
        raise


def _tell() -> NoReturn:
    print("gateway: interrupted", file=sys.stderr)
    _leave()


def _leave() -> NoReturn:
    """
    End with the exit code of an interrupted program.

    Not by sys.exit: an interrupt that met the interpreter inside `exec` (dataclasses are made so) makes it end itself
    with SIGINT, whatever was done about the exception.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
