"""A temporary directory for one launch, so that what the engine leaves there goes with it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

LONGEST_FOLDER_BYTES = 70
"""vLLM makes Unix sockets with names of 36 bytes in it, and a socket's path has 107 at most."""


def make_scratch(runtime_dir: Path, launch_id: str, environ: Mapping[str, str]) -> Path:
    """
    An empty private directory: below `runtime_dir`, or where that path is too long in the system's temporary one.

    vLLM leaves a file for every start there (`vllm_dist_...`), and its sockets when it is killed.

    Raises OSError.
    """
    folder = runtime_dir / f"tmp-{launch_id[:8]}"
    if len(bytes(folder)) > LONGEST_FOLDER_BYTES:
        return Path(tempfile.mkdtemp(prefix="gateway-", dir=environ.get("TMPDIR") or None))
    remove_scratch(folder)
    folder.mkdir(mode=0o700, parents=True)
    return folder


def remove_scratch(folder: Path) -> None:
    """Remove it with everything in it; nothing happens when it is gone already."""
    shutil.rmtree(folder, ignore_errors=True)
