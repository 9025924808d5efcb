"""What an operator asks of the running gateway over its Unix socket: `gateway workers`, `gpus` and `reload`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console

from gateway.control.admin_client import AdminClient
from gateway.control.operations import OperationReport
from gateway.control.reload_view import changes_view
from gateway.control.state_dir import StateDir
from gateway.control.status_view import status_view
from gateway.errors import ConfigurationError, ControlUnavailable, GatewayError

FOLLOW_S = 0.3

WorkerArgument = Annotated[str, typer.Argument(metavar="NAME", help="Worker, as `gateway status` shows it.")]


class OperationFailed(GatewayError):
    """A reload or a rolling restart ended with a failure, which it has told."""


def workers_app(state_of: Callable[[], StateDir], console_of: Callable[[], Console]) -> typer.Typer:
    """
    The sub-commands of `gateway workers`.

    Args:
        state_of: The state directory of the running gateway.
        console_of: Where people read.
    """
    app = typer.Typer(
        help="Restart, drain, stop or start workers of the running gateway; alone: the list of workers.",
        invoke_without_command=True,
    )

    @app.callback()
    def workers(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            console_of().print(status_view(AdminClient(state_of()).status()))

    @app.command("restart")
    def restart(
        name: Annotated[
            str | None,
            typer.Argument(metavar="[NAME|MODEL]", help="One worker; or a model, all of whose workers go in turn."),
        ] = None,
        everything: Annotated[bool, typer.Option("--all", help="All workers of all models in turn.")] = False,
        min_available: Annotated[
            int | None,
            typer.Option(min=0, help="In turn: how many workers of a model go on serving; default all but one."),
        ] = None,
    ) -> None:
        """Out of rotation, running requests finish (at most drain_timeout_s), then stop and start again."""
        if everything == (name is not None):
            raise ConfigurationError("name one worker or model, or give --all")
        client = AdminClient(state_of())
        report = client.status()
        is_worker = name in {worker.name for worker in report.workers}
        if name is not None and (is_worker or name not in {model.name for model in report.models}):
            if min_available is not None:
                raise ConfigurationError("--min-available goes with --all or a model, which are restarted in turn")
            command_worker(client, name, "restart")
            return
        follow_operation(client, client.restart(name, min_available))

    @app.command("drain")
    def drain(name: WorkerArgument) -> None:
        """Out of rotation; running requests finish and the process stays until `start` or `stop`."""
        command_worker(AdminClient(state_of()), name, "drain")

    @app.command("stop")
    def stop(name: WorkerArgument) -> None:
        """Out of rotation, running requests finish, then stop; it stays stopped until `start`."""
        command_worker(AdminClient(state_of()), name, "stop")

    @app.command("start")
    def start(name: WorkerArgument) -> None:
        """Start a stopped or failed worker, or put a draining one back into rotation."""
        command_worker(AdminClient(state_of()), name, "start")

    return app


def gpus_app(state_of: Callable[[], StateDir]) -> typer.Typer:
    """The sub-command of `gateway gpus`; arguments as for `workers_app`."""
    app = typer.Typer(help="Have a GPU used again that `gateway status` shows as out of use.", no_args_is_help=True)

    @app.command("return")
    def return_(
        index: Annotated[int, typer.Argument(metavar="GPU", min=0, help="Its index, as `gateway status` shows it.")],
    ) -> None:
        """Have workers started on it again, because it is mended."""
        was = AdminClient(state_of()).return_gpu(index)
        print(f"GPU {index} is used again; it was out of use because: {was}")

    return app


def reload_command(state_of: Callable[[], StateDir], console_of: Callable[[], Console]) -> Callable[..., None]:
    """The command `gateway reload`; arguments as for `workers_app`."""

    def reload(
        dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show the difference.")] = False,
        processes: Annotated[
            bool,
            typer.Option(
                "--processes",
                help="Read no file: new gateway processes with the code that is installed now, same settings.",
            ),
        ] = False,
    ) -> None:
        """
        Read the configuration file of the running gateway again, and apply the difference.

        Limits and time-outs get new gateway processes while the old ones finish their streams; changed launch options
        replace workers one by one, back to the old options where one does not start. SIGHUP does the same.
        """
        client = AdminClient(state_of())
        if processes:
            if dry_run:
                raise ConfigurationError("--processes compares nothing, so there is no --dry-run of it")
            follow_operation(client, client.replace_processes())
            return
        answer = client.reload(dry_run=dry_run)
        console_of().print(changes_view(answer.changes))
        if answer.refused:
            raise ConfigurationError(answer.refused)
        if answer.operation is not None:
            follow_operation(client, answer.operation)

    return reload


def command_worker(client: AdminClient, worker: str, command: str) -> None:
    """Queue a command for a worker and say so."""
    was = client.command(worker, command)
    print(f"{worker}: {command} accepted (it was {was}); gateway status shows what becomes of it")


def follow_operation(client: AdminClient, operation: OperationReport) -> None:
    """
    Print what an operation says until it ends. Ctrl-C leaves it to itself.

    Raises OperationFailed when it failed.
    """
    said = 0
    try:
        while True:
            for line in operation.lines[said:]:
                print(line, flush=True)
            said = len(operation.lines)
            if not operation.running:
                break
            time.sleep(FOLLOW_S)
            newest = client.operation()
            if newest.number != operation.number:
                raise ControlUnavailable("another operation has begun meanwhile", fix="gateway status")
            operation = newest
    except KeyboardInterrupt:
        print(f"the {operation.name} goes on; gateway status shows what becomes of it")
        return
    if operation.failed:
        raise OperationFailed(f"the {operation.name} did not succeed, see above")
