"""A temporary directory for one launch, so that what the engine leaves there goes with it."""

from __future__ import annotations

import shutil
from pathlib import Path

_NAME = "tmp-{}"
_ID_LENGTH = 8
_ENGINE_SOCKET_BYTES = 36
"""vLLM makes Unix sockets with names that long in its TMPDIR, and does not start where their paths are too long."""
LONGEST_SOCKET_BYTES = 1 + len(_NAME.format("x" * _ID_LENGTH)) + 1 + _ENGINE_SOCKET_BYTES
"""What the path of the longest socket of a launch has more than its runtime directory's."""


def make_scratch(runtime_dir: Path, launch_id: str) -> Path:
    """
    An empty private directory below `runtime_dir`, to be the launch's TMPDIR.

    vLLM leaves a file for every start there (`vllm_dist_...`), and its sockets when it is killed.

    Raises OSError; FileNotFoundError when `runtime_dir` is gone. It is not made again: what its owner made is private,
    and below a temporary directory somebody else could make another first.
    """
    folder = runtime_dir / _NAME.format(launch_id[:_ID_LENGTH])
    remove_scratch(folder)
    folder.mkdir(mode=0o700)
    return folder


def remove_scratch(folder: Path) -> None:
    """Remove it with everything in it; nothing happens when it is gone already."""
    shutil.rmtree(folder, ignore_errors=True)
