"""`gateway reload` for people: the difference as a table."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gateway.control.changes import Change, Effect


def changes_view(changes: Sequence[Change]) -> RenderableType:
    """One row for each key."""
    if not changes:
        return Text("no difference: the configuration file says what already runs")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("KEY", "NOW", "NEW", "EFFECT"):
        table.add_column(title, overflow="fold")
    for change in changes:
        refused = change.effect is Effect.REFUSED
        table.add_row(
            escape(change.key),
            escape(change.before) or "-",
            escape(change.after) or "-",
            f"[red]{change.effect}[/]" if refused else escape(str(change.effect)),
        )
    return table
