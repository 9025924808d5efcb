# ruff: noqa: UP031
"""
First program of every Make target: finds a Python this project supports and has it build the light environment.

Standard library only, and written so that any Python 3 can read it (no f-strings, no newer syntax or annotations): an
old interpreter must come as far as the sentence that says which one is needed.

    python3 -m gateway.setup.bootstrap        prints nothing and ends within a second when there is nothing to do
    PYTHON=/path/to/python                    builds with exactly that interpreter
"""

import os
import subprocess
import sys
from collections.abc import Callable

OLDEST = (3, 11)
NEWEST = (3, 14)
EXIT_ENVIRONMENT = 3


def supported(version: "tuple[int, ...]") -> bool:
    """Whether this project runs on a Python of that (major, minor)."""
    return OLDEST <= version <= NEWEST


def version_of(command: str) -> "tuple[int, int] | None":
    """(major, minor) of the interpreter `command`; None when it is none, or does not start (a broken pyenv shim)."""
    try:
        printed = subprocess.check_output(
            [command, "-c", "import sys; print('%d %d' % sys.version_info[:2])"], stderr=subprocess.DEVNULL
        )
        major, minor = printed.split()
        return int(major), int(minor)
    except (OSError, ValueError, subprocess.CalledProcessError):
        return None


def find_interpreter(
    wanted: str, probe: "Callable[[str], tuple[int, int] | None]" = version_of
) -> "tuple[str | None, list[str]]":
    """
    An interpreter this project supports: (command, what was looked at).

    `wanted` is the operator's choice, which is never replaced by another; without one: python3, then the newest of
    python3.14 to python3.11 on PATH. The command is None when there is none.
    """
    names = (
        [wanted] if wanted else ["python3"] + ["python3.%d" % minor for minor in range(NEWEST[1], OLDEST[1] - 1, -1)]
    )
    looked_at = []
    for name in names:
        version = probe(name)
        if version is None:
            looked_at.append("%s: does not run" % name)
        elif not supported(version):
            looked_at.append("%s: Python %d.%d" % (name, version[0], version[1]))
        else:
            return name, looked_at
    return None, looked_at


def main() -> int:
    """Build the light environment with this interpreter, or hand over to one that can."""
    wanted = os.environ.get("PYTHON", "")
    handed_over = "--chosen" in sys.argv[1:]
    if not handed_over and (wanted or not supported(tuple(sys.version_info[:2]))):
        command, looked_at = find_interpreter(wanted)
        if command is None:
            sys.stderr.write(
                "vllm-gateway needs Python %d.%d to %d.%d, found: %s.\n"
                "To mend it: install one (Debian, Ubuntu: sudo apt-get install python3 python3-venv) "
                "or name one: make PYTHON=/path/to/python3.12\n" % (OLDEST + NEWEST + ("; ".join(looked_at),))
            )
            return EXIT_ENVIRONMENT
        os.execvp(command, [command, "-m", "gateway.setup.bootstrap", "--chosen"])
    from gateway.setup import light

    return light.main(os.environ)


if __name__ == "__main__":
    sys.exit(main())
