"""From a worker's specification to the command that starts it: a pure function."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CommandLine:
    """Argument list and complete environment of a worker; the environment holds its key, so it is never printed."""

    argv: tuple[str, ...]
    environ: Mapping[str, str] = field(repr=False)
