"""A temporary directory for one launch, so that what the engine leaves there goes with it."""

from __future__ import annotations

import shutil
from pathlib import Path


def make_scratch(runtime_dir: Path, launch_id: str) -> Path:
    """
    An empty private directory below `runtime_dir`, whose path is short (`control.runtime_dir`).

    vLLM leaves a file for every start in its TMPDIR (`vllm_dist_...`), its sockets when it is killed, and does not
    start at all where their paths are too long: names of 36 bytes, and a socket's path has 107 at most.

    Raises OSError.
    """
    folder = runtime_dir / f"tmp-{launch_id[:8]}"
    remove_scratch(folder)
    folder.mkdir(mode=0o700, parents=True)
    return folder


def remove_scratch(folder: Path) -> None:
    """Remove it with everything in it; nothing happens when it is gone already."""
    shutil.rmtree(folder, ignore_errors=True)
