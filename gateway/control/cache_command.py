"""`gateway cache`: what engines and models of earlier releases take of the disk, and how they go."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.errors import ConfigurationError, Interrupted
from gateway.setup.cache import Entry, Use, look, remove
from gateway.setup.sizes import megabytes

_SAYING = {
    Use.THIS_RELEASE: "used by this release",
    Use.A_GATEWAY: "used by a running gateway",
    Use.PROCESSES: "used by",
    Use.BEING_BUILT: "being built",
    Use.NONE: "not used",
    Use.UNFINISHED: "not used: unfinished",
    Use.SHARED: "used by every release",
    Use.FOREIGN: "not made by the gateway",
}


def cache_command(cache_of: Callable[[], Path], console_of: Callable[[], Console]) -> Callable[..., None]:
    """
    The command.

    Args:
        cache_of: The cache directory to look at.
        console_of: Where people read.
    """

    def cache(
        prune: Annotated[bool, typer.Option("--prune", help="Remove what is not used, after a question.")] = False,
        yes: Annotated[bool, typer.Option("--yes", "-y", help="With --prune: do not ask.")] = False,
    ) -> None:
        """
        Show what the cache holds: engines and models, how large they are and who uses them.

        Those of earlier releases are not removed by an upgrade, so that one can go back. What this release, a running
        gateway or a running process uses is never removed.
        """
        if yes and not prune:
            raise ConfigurationError("--yes goes with --prune")
        folder = cache_of()
        entries = look(folder)
        unused = [entry for entry in entries if entry.use.removable]
        console_of().print(_table(folder, entries))
        if not unused:
            print("nothing is to be removed")
            return
        size = megabytes(_bytes(unused))
        if not prune:
            print(f"gateway cache --prune removes what is not used: {size}")
            return
        if not yes:
            if not sys.stdin.isatty():
                raise ConfigurationError("gateway cache --prune asks before it removes; where nobody can answer: --yes")
            if not typer.confirm(f"Remove what is not used ({size})?"):
                return
        remove_all(folder, unused)

    return cache


def remove_all(folder: Path, unused: Sequence[Entry]) -> None:
    """Remove these, and say so one by one."""
    removed: list[Entry] = []
    try:
        for entry in unused:
            name = entry.path.relative_to(folder)
            if remove(entry):
                removed.append(entry)
                print(f"removed {name} ({megabytes(entry.size_bytes)})", flush=True)
            else:
                print(f"left {name}: somebody has begun to build or use it", flush=True)
    except KeyboardInterrupt:
        raise Interrupted(
            "interrupted; what is half removed counts as unfinished, and the next --prune removes the rest"
        ) from None
    print(f"freed: {megabytes(_bytes(removed))}")


def _table(folder: Path, entries: Sequence[Entry]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_footer=True)
    table.add_column(escape(str(folder)), footer="together", overflow="fold")
    table.add_column("SIZE", footer=megabytes(_bytes(entries)), justify="right", no_wrap=True)
    table.add_column("", overflow="fold")
    for entry in entries:
        if entry.use is not Use.SHARED:
            name = str(entry.path.relative_to(folder))
            table.add_row(escape(name), megabytes(entry.size_bytes), escape(_saying(entry)))
    shared = [entry for entry in entries if entry.use is Use.SHARED]
    if shared:
        table.add_row("everything else", megabytes(_bytes(shared)), _SAYING[Use.SHARED])
    return table


def _bytes(entries: Sequence[Entry]) -> int:
    return sum(entry.size_bytes for entry in entries)


def _saying(entry: Entry) -> str:
    if not entry.pids:
        return _SAYING[entry.use]
    processes = f"process{'' if len(entry.pids) == 1 else 'es'} {', '.join(map(str, entry.pids))}"
    return f"used by {processes}" if entry.use is Use.PROCESSES else f"{_SAYING[entry.use]} ({processes})"
