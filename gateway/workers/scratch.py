"""A temporary directory for one launch, so that what the engine leaves there goes with it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

LONGEST_FOLDER_BYTES = 70
"""vLLM makes Unix sockets with names of 36 bytes in it, and a socket's path has 107 at most."""
_LAST_RESORT = "/tmp"
_PREFIX = "gateway-"
_RANDOM_NAME_BYTES = len(_PREFIX) + 9


def make_scratch(runtime_dir: Path, launch_id: str, environ: Mapping[str, str]) -> Path:
    """
    An empty private directory: below `runtime_dir`, where that path is too long below TMPDIR, else below /tmp.

    vLLM leaves a file for every start there (`vllm_dist_...`), its sockets when it is killed, and does not start at all
    where their paths are too long.

    Raises OSError.
    """
    folder = runtime_dir / f"tmp-{launch_id[:8]}"
    if len(bytes(folder)) <= LONGEST_FOLDER_BYTES:
        remove_scratch(folder)
        folder.mkdir(mode=0o700, parents=True)
        return folder
    temporary = environ.get("TMPDIR") or _LAST_RESORT
    if len(temporary.encode()) + _RANDOM_NAME_BYTES > LONGEST_FOLDER_BYTES:
        temporary = _LAST_RESORT
    return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=temporary))


def remove_scratch(folder: Path) -> None:
    """Remove it with everything in it; nothing happens when it is gone already."""
    shutil.rmtree(folder, ignore_errors=True)
