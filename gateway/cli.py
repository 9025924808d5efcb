"""
The `gateway` command: arguments, environment, exit codes.

The only module that reads the environment. Everything it does is done elsewhere; here words become calls, and errors
become one line on standard error and the exit code documented in `gateway --help`. What serves is imported where it is
used: FastAPI alone takes longer to import than any other command to run.
"""

from __future__ import annotations

import errno
import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from gateway import __version__
from gateway.config.load import explain, load_settings, settings_from_mapping
from gateway.config.settings import MAX_PROCESSES, Settings
from gateway.control.admin_client import AdminClient
from gateway.control.cache_command import cache_command
from gateway.control.console import PatientConsole
from gateway.control.fleet_commands import gpus_app, reload_command, workers_app
from gateway.control.keys_command import keys_app
from gateway.control.leftovers import sweep_leftovers
from gateway.control.machine import machine_from, with_listed_gpus
from gateway.control.notify import SystemdWatcher
from gateway.control.preparation import (
    Surroundings,
    document_for_model,
    engines_in_use,
    machine_facts,
    overridden,
    without_ours,
)
from gateway.control.runtime_dir import runtime_directory
from gateway.control.state_dir import StateDir, held
from gateway.control.status_view import COLUMNS, status_view
from gateway.control.worker_logs import follow, log_path, tail
from gateway.errors import ConfigurationError, ConfigurationProblems, EnvironmentProblem, GatewayError, Interrupted
from gateway.setup.builds import suitable_build
from gateway.setup.directories import directories
from gateway.setup.doctor import Purpose, Severity, checks_passed, doctor_report, findings
from gateway.setup.engine import built_engine
from gateway.setup.facts import gather_facts
from gateway.setup.model import built_default_model
from gateway.setup.progress import ProgressPrinter
from gateway.tracing import require_usable
from gateway.types import WorkerAddress
from gateway.workers.command_line import command_line

DEFAULT_PORTS = {"listen": 8000, "admin": 8001}
WATCH_S = 1.0
PIPE_COLUMNS = 200
_MENDABLE = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EMFILE})
"""What a machine that is full or locked says, wherever it is met: not a defect of ours."""
UNWANTED_STOPS = frozenset({"signal", "core-dump", "watchdog", "oom-kill"})
"""$SERVICE_RESULT of a service that nobody stopped: systemd starts it again, and its workers can be adopted."""

EXIT_CODES = """
Exit codes: 0 done or stopped on request; 1 unexpected error; 2 wrong configuration or command line; 3 this machine
lacks something (the message has the command that mends it); 4 port in use; 5 another gateway runs with the same state
directory; 6 no worker could be started; 7 no gateway is running; 130 interrupted during set-up.
"""


app = typer.Typer(
    name="gateway",
    help="One OpenAI-compatible endpoint over a fleet of vLLM workers that it launches, watches and restarts.",
    epilog=EXIT_CODES,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(workers_app(lambda: _state(), lambda: _console()), name="workers")
app.add_typer(gpus_app(lambda: _state()), name="gpus")
app.add_typer(keys_app(lambda: _state(), lambda: _console()), name="keys")
app.command("reload")(reload_command(lambda: _state(), lambda: _console()))
app.command("cache")(cache_command(lambda: directories(os.environ).cache, lambda: _console()))

ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "-c", "--config", envvar="GATEWAY_CONFIG", metavar="FILE", help="Configuration file (YAML) of the whole fleet."
    ),
]
EnginePythonOption = Annotated[
    Path | None,
    typer.Option(
        envvar="GATEWAY_ENGINE_PYTHON",
        metavar="PATH",
        help="Interpreter of your own environment with vLLM; none is built then.",
    ),
]


def main() -> None:
    """Entry point of the console script."""
    try:
        app(prog_name="gateway")
    except ConfigurationProblems as error:
        for problem in error.problems:
            _complain(problem)
        sys.exit(error.exit_code)
    except GatewayError as error:
        _complain(error)
        sys.exit(error.exit_code)
    except OSError as error:
        if error.errno not in _MENDABLE:
            raise
        where = f"{error.filename} cannot be written" if error.filename else "writing a file failed"
        _complain(EnvironmentProblem(f"{where} ({error.strerror})", fix="df -h, or GATEWAY_STATE_DIR on another disk"))
        sys.exit(EnvironmentProblem.exit_code)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"vllm-gateway {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of the command as a whole."""


@app.command()
def up(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="Hub id (Qwen/Qwen3-0.6B) or folder with a config.json. Without MODEL and without -c: the embedded "
            "SmolLM2-135M-Instruct.",
        ),
    ] = None,
    config: ConfigOption = None,
    host: Annotated[
        str | None,
        typer.Option(
            envvar="GATEWAY_HOST",
            help="Address for clients; default 127.0.0.1. Others need API keys or allow_anonymous: true.",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(envvar="GATEWAY_PORT", min=1, max=65535, help="Port for clients; default 8000.")
    ] = None,
    admin_port: Annotated[
        int | None,
        typer.Option(envvar="GATEWAY_ADMIN_PORT", min=1, max=65535, help="Port for status and metrics; default 8001."),
    ] = None,
    processes: Annotated[
        int | None,
        typer.Option(
            envvar="GATEWAY_PROCESSES", min=1, max=MAX_PROCESSES, help="Gateway processes on that port; default 1."
        ),
    ] = None,
    replicas: Annotated[int | None, typer.Option(min=1, help="Workers of MODEL; default 1.")] = None,
    name: Annotated[str | None, typer.Option(help="Public name of MODEL; default: its own.")] = None,
    engine_python: EnginePythonOption = None,
) -> None:
    """
    Set up what is missing, launch the workers and serve until Ctrl-C.

    The first run installs vLLM into your cache directory (it says how much); later runs need seconds of set-up. Ends
    with the address, lines to copy, and where the metrics are.
    """
    if model is not None and config is not None:
        raise ConfigurationError(
            f"give either MODEL ({model}) or a configuration file ({config}, from -c or GATEWAY_CONFIG), not both"
        )
    around = _surroundings()
    folder = config.parent if config is not None else Path.cwd()

    def settings(ours: frozenset[int]) -> Settings:
        if config is not None:
            for option, value in (("--replicas", replicas), ("--name", name)):
                if value is not None:
                    raise ConfigurationError(f"{option} goes with MODEL; with a file, set it there")
            return overridden(load_settings(config), host, port, admin_port, processes, engine_python)
        facts = without_ours(gather_facts(around.environ, cache=around.directories.cache, ports=()), ours)
        document = document_for_model(
            model,
            name=name,
            replicas=replicas,
            engine_python=engine_python,
            facts=facts,
            machine=machine_from(facts, around.environ),
            folder=folder,
        )
        return overridden(settings_from_mapping(document, folder), host, port, admin_port, processes, None)

    # Until the supervisor takes over, SIGTERM means what Ctrl-C means: set-up ends its children and leaves. A shell
    # that starts us in the background has SIGINT ignored, which would make set-up deaf.
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        from gateway.control.composition import Terminal, serve

        command = as_typed(sys.argv[0], sys.orig_argv[0])
        terminal = Terminal(console=_console(), log_file=sys.stderr.buffer, command=command)
        manager = SystemdWatcher.from_environ(around.environ)
        serve(settings, around, terminal, folder=folder, from_file=config is not None, manager=manager)
    except KeyboardInterrupt:
        raise Interrupted("interrupted during set-up; the next run starts over") from None


@app.command()
def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Configuration file (YAML).")],
) -> None:
    """
    Check a configuration file: every problem with its line and key, else the commands that would start the workers.

    Starts and installs nothing.
    """
    from gateway.control.factory import expected_engine, plan_workers, refuse_hopeless, resources_of
    from gateway.workers.preflight import Resources

    problems = explain(file)
    if problems:
        raise ConfigurationProblems(problems)
    settings = load_settings(file)
    require_usable(settings.traces.endpoint, settings.traces.headers_file)
    around = _surroundings()
    facts = machine_facts(settings, around)
    machine, missing = with_listed_gpus(machine_from(facts, around.environ), settings)
    on_gpus = {model.engine for model in settings.models.values() if model.launch.gpus is not None}
    engines = {
        name: expected_engine(engine, facts, around, on_gpus=name in on_gpus)
        for name, engine in engines_in_use(settings).items()
    }
    state = StateDir(around.directories.state)
    planned = plan_workers(settings, machine, engines, state.logs, state.root / "run")
    # A file that lists GPUs of another machine is not held against this one's memory.
    refuse_hopeless(planned, Resources({}) if missing else resources_of(machine, facts), around.environ)
    print(f"{file}: no problem found")
    if missing:
        print(f"note: GPU {', '.join(map(str, missing))} of launch.gpus is not on this machine")
    for spec in planned:
        if spec.static is not None:
            print(f"\n# {spec.name}: static worker {spec.static.url}")
            continue
        uds = str(state.root / "run" / f"{spec.name}.sock") if spec.launch.transport == "uds" else None
        command = command_line(spec, WorkerAddress(host="127.0.0.1", uds=uds), around.environ)
        print(f"\n# {spec.name} (model {spec.model}, {_placement(spec.gpus, spec.cpus)}; port 0: a free one is taken)")
        print(shlex.join(command.argv))


@app.command()
def doctor(
    purpose: Annotated[
        Purpose, typer.Option("--for", help="What this machine is to do: what is not needed for it is not looked at.")
    ] = Purpose.SERVE,
    host: Annotated[str, typer.Option(envvar="GATEWAY_HOST", help="Address for clients.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(envvar="GATEWAY_PORT", min=1, max=65535, help="Port for clients.")
    ] = DEFAULT_PORTS["listen"],
    admin_port: Annotated[
        int, typer.Option(envvar="GATEWAY_ADMIN_PORT", min=1, max=65535, help="Port for status and metrics.")
    ] = DEFAULT_PORTS["admin"],
    engine_python: EnginePythonOption = None,
) -> None:
    """Look at this machine: what is in order, what is not, and the command that mends it. Changes nothing."""
    around = _surroundings()
    cache = around.directories.cache
    ports = ((host, port), ("127.0.0.1", admin_port))
    facts = gather_facts(around.environ, cache=cache, ports=ports, model_built=built_default_model(cache) is not None)
    variant = "own" if engine_python is not None else "auto"
    build = suitable_build(variant, facts) if variant != "own" else None
    built = build is not None and built_engine(build, cache) is not None
    facts = gather_facts(around.environ, cache=cache, ports=ports, engine_built=built, model_built=facts.model_built)
    found = findings(facts, purpose, variant)
    print(doctor_report(found, checks_passed(facts, purpose, variant)))
    if any(finding.severity is Severity.BLOCKER for finding in found):
        raise typer.Exit(EnvironmentProblem.exit_code)


@app.command()
def status(
    as_json: Annotated[bool, typer.Option("--json", help="The whole report as JSON, for programs.")] = False,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Redraw every second until Ctrl-C.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Also model, address, context, engine and log file.")] = False,
) -> None:
    """Show models, workers and gateway processes of the running gateway."""
    client = AdminClient(_state())
    if as_json:
        sys.stdout.write(client.status().to_json().decode() + "\n")
        return
    console = _console()
    if not wide:
        console.width = min(console.width, COLUMNS)
    if not watch:
        console.print(status_view(client.status(), wide=wide, columns=console.width))
        return
    view = status_view(client.status(), wide=wide, columns=console.width)
    with (
        suppress(KeyboardInterrupt),  # is how watching ends
        Live(view, console=console, auto_refresh=False, screen=console.is_terminal) as live,
    ):
        while True:
            time.sleep(WATCH_S)
            live.update(status_view(client.status(), wide=wide, columns=console.width), refresh=True)


@app.command(hidden=True)
def sweep(
    after_stop: Annotated[
        bool, typer.Option("--after-stop", help="As ExecStopPost: not when the service is about to be started again.")
    ] = False,
) -> None:
    """End workers that a killed gateway left, instead of having the next `gateway up` adopt them."""
    if after_stop and os.environ.get("SERVICE_RESULT", "") in UNWANTED_STOPS:
        print("the gateway was killed: its workers go on and are adopted by the next one")
        return
    with held(_state().root) as state:
        if not sweep_leftovers(state, _console()):
            print("no worker of an earlier gateway is left")
        with runtime_directory(state):
            pass  # entering removes the sockets of the killed one, leaving removes its own


@app.command()
def logs(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Worker, as `gateway status` shows it.")],
    following: Annotated[bool, typer.Option("-f", "--follow", help="Go on with what is added, until Ctrl-C.")] = False,
    previous: Annotated[bool, typer.Option("--previous", help="The run before: the one that crashed.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, help="How many of the last lines.")] = 200,
) -> None:
    """Show what a worker has printed. Works without a running gateway too."""
    path = log_path(_state().logs, name, previous=previous)
    with suppress(KeyboardInterrupt):  # is how following ends
        for part in follow(path, lines) if following else tail(path, lines):
            sys.stdout.buffer.write(part)
            sys.stdout.buffer.flush()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _surroundings() -> Surroundings:
    environ: Mapping[str, str] = dict(os.environ)
    return Surroundings(environ=environ, directories=directories(environ), report=ProgressPrinter(sys.stdout))


def _state() -> StateDir:
    return StateDir(directories(os.environ).state)


def _console() -> Console:
    # A pipe has no width; 80 columns would fold what a program or a log is going to read.
    return PatientConsole(file=sys.stdout, width=None if sys.stdout.isatty() else PIPE_COLUMNS)


def as_typed(program: str, interpreter: str) -> str:
    """
    How this command was called, so that lines we print can be copied.

    Args:
        program: `sys.argv[0]`; a module's own file under `python -m`.
        interpreter: `sys.orig_argv[0]`.
    """
    path = Path(program)
    if path.name == "__main__.py":
        return f"{shlex.quote(interpreter)} -m gateway"
    found = shutil.which(path.name)
    if found is not None and path.is_absolute() and path == Path(found):
        return path.name
    return shlex.quote(program)


def _placement(gpus: tuple[int, ...], cpus: tuple[int, ...]) -> str:
    if gpus:
        return f"GPU {','.join(map(str, gpus))}"
    return f"cores {','.join(map(str, cpus))}" if cpus else "cores as the engine decides"


def _complain(error: GatewayError) -> None:
    print(f"gateway: {error}", file=sys.stderr)
