"""
The `gateway` command, also as `python -m gateway`.

The command's own modules take half a second to import; an interrupt during that time is told like any other.
"""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def main() -> None:
    """Entry point of the console script."""
    try:
        from gateway.cli import main as command

        command()
    except KeyboardInterrupt:
        print("gateway: interrupted", file=sys.stderr)
        _leave()
    except SystemExit as exc:
        if exc.code == INTERRUPTED:
            _leave()
        raise


def _leave() -> None:
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
