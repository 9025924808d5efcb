"""
Entry of a gateway process: `gateway.app`, with its hot modules compiled where they have been built (`setup.compiled`).

A module of its own because what it decides must be decided before anything else is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from gateway.setup.compiled import INTERPRETED, activate


def main(argv: Sequence[str]) -> int:
    """Run the gateway process; returns its exit code."""
    if argv and argv[0] == INTERPRETED:
        compiled, argv = False, argv[1:]
    else:
        compiled = activate()
    from gateway.app import main as run

    return run(argv, compiled=compiled)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
