"""`gateway keys`: API keys are made, listed and revoked, with or without a running gateway."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from gateway.clock import SystemClock
from gateway.control.admin_client import AdminClient
from gateway.control.state_dir import StateDir, prepare
from gateway.errors import ControlUnavailable
from gateway.keys import ApiKey, KeysFile, read_keys


def keys_app(state_of: Callable[[], StateDir], console_of: Callable[[], Console]) -> typer.Typer:
    """
    The sub-commands.

    Args:
        state_of: The state directory to use.
        console_of: Where people read.
    """
    app = typer.Typer(
        help="API keys: create, list, revoke. A running gateway follows within about a second.", no_args_is_help=True
    )

    @app.command("create")
    def create(
        name: Annotated[str, typer.Argument(metavar="NAME", help="Whose key it is: the tenant in every log line.")],
        model: Annotated[
            list[str] | None,
            typer.Option("--model", metavar="M", help="Public model name it may use; again for more. Default: all."),
        ] = None,
        priority: Annotated[
            int, typer.Option(help="Stored for request queues, which do not exist yet: no effect so far.")
        ] = 0,
        max_in_flight: Annotated[
            int | None,
            typer.Option(min=1, metavar="N", help="Requests it may have running at a time. Default: any."),
        ] = None,
    ) -> None:
        """
        Make a key and print it, once: only its digest is stored.

        The key alone goes to standard output, so that KEY=$(gateway keys create NAME) works. From the first key on,
        every request needs one.
        """
        state = state_of()
        prepare(state.root)
        before = read_keys(state.keys_file)
        created = KeysFile(state.keys_file, SystemClock()).create(
            name, models=tuple(model) if model else None, priority=priority, max_in_flight=max_in_flight
        )
        print(created.secret)
        _note(f"{created.key.id} for {name}; the key is shown this once and cannot be recovered")
        if before is None:
            _note("this is the first key: from now on every request needs one")
        namesakes = [key.id for key in before or () if key.name == name]
        if namesakes:
            _note(f"{name} has further keys: {', '.join(namesakes)}")
        for unknown in _unknown_models(state, created.key.models):
            _note(f"warning: the running gateway has no model {unknown!r}; a key takes models' own names, not aliases")

    @app.command("list")
    def list_(
        as_json: Annotated[bool, typer.Option("--json", help="As a JSON array, for programs.")] = False,
    ) -> None:
        """Show all keys: whose, for what, since when. Never the keys themselves."""
        state = state_of()
        keys = read_keys(state.keys_file)
        if as_json:
            print(json.dumps([_fields(key) for key in keys or ()], ensure_ascii=False))
        elif keys:
            console_of().print(_table(keys))
        elif keys is None:
            print("no API keys: requests are served without on loopback; gateway keys create NAME makes one")
        else:
            print(f"no API keys are left: every request is refused. {_way_back(state)}")

    @app.command("revoke")
    def revoke(
        key: Annotated[str, typer.Argument(metavar="ID|NAME", help="As `gateway keys list` shows it.")],
    ) -> None:
        """Remove a key: requests with it are refused within about a second; those that run may finish."""
        state = state_of()
        revoked, left = KeysFile(state.keys_file, SystemClock()).revoke(key)
        print(f"revoked {revoked.id} ({revoked.name})")
        if not left:
            print(f"no API keys are left: every request is refused. {_way_back(state)}")

    return app


def _way_back(state: StateDir) -> str:
    return f"Create another, or delete {state.keys_file} and restart the gateway to serve without keys."


def _fields(key: ApiKey) -> dict[str, object]:
    """What may be shown of a key."""
    return {
        "id": key.id,
        "name": key.name,
        "models": None if key.models is None else list(key.models),
        "priority": key.priority,
        "max_in_flight": key.max_in_flight,
        "created": datetime.fromtimestamp(key.created, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _table(keys: tuple[ApiKey, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("ID", "NAME", "MODELS"):
        table.add_column(title, no_wrap=title != "MODELS")
    for title in ("PRIORITY", "MAX IN FLIGHT"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("CREATED", no_wrap=True)
    for key in keys:
        table.add_row(
            key.id,
            escape(key.name),
            "all" if key.models is None else escape(", ".join(key.models)),
            str(key.priority),
            "-" if key.max_in_flight is None else str(key.max_in_flight),
            str(_fields(key)["created"]),
        )
    return table


def _unknown_models(state: StateDir, models: tuple[str, ...] | None) -> list[str]:
    """Which of `models` the running gateway does not have; none when no gateway runs that could tell."""
    if models is None:
        return []
    try:
        known = {model.name for model in AdminClient(state).status().models}
    except ControlUnavailable:
        return []
    return [model for model in models if model not in known]


def _note(text: str) -> None:
    """For people; standard output is for the key."""
    print(text, file=sys.stderr)
