"""
The `gateway` command, also as `python -m gateway`.

The command's own modules take half a second to import; an interrupt during that time is told like any other.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of the console script."""
    try:
        from gateway.cli import main as command

        command()
    except KeyboardInterrupt:
        print("gateway: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
