"""Where this user's caches and state lie. Pure: the environment comes in, nothing is created."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gateway.errors import EnvironmentProblem

APPLICATION = "vllm-gateway"


@dataclass(frozen=True, slots=True)
class Directories:
    """
    `cache` can be deleted at any time while nothing runs (engines, converted models); `state` holds launch records,
    logs, sockets and tokens.
    """

    cache: Path
    state: Path


def directories(environ: Mapping[str, str]) -> Directories:
    """
    GATEWAY_CACHE_DIR and GATEWAY_STATE_DIR, else the XDG base directories, else the folders XDG defines below HOME.

    A relative XDG path is ignored, as the specification asks. Raises EnvironmentProblem when nothing says where.
    """
    return Directories(
        cache=_directory(environ, "GATEWAY_CACHE_DIR", "XDG_CACHE_HOME", ".cache"),
        state=_directory(environ, "GATEWAY_STATE_DIR", "XDG_STATE_HOME", ".local/state"),
    )


def _directory(environ: Mapping[str, str], own: str, xdg: str, below_home: str) -> Path:
    if environ.get(own):
        path = Path(environ[own]).expanduser()
        if not path.is_absolute():
            raise EnvironmentProblem(
                f"{own} must be an absolute path, found {environ[own]!r}", fix=f"export {own}=$PWD/{environ[own]}"
            )
        return path
    if environ.get(xdg, "").startswith("/"):
        return Path(environ[xdg]) / APPLICATION
    if environ.get("HOME", "").startswith("/"):
        return Path(environ["HOME"]) / below_home / APPLICATION
    raise EnvironmentProblem(
        f"no directory to keep files in: HOME, {xdg} and {own} are unset",
        fix="export HOME=/path/to/a/folder, or both GATEWAY_CACHE_DIR and GATEWAY_STATE_DIR",
    )
