"""
`make observe`: Prometheus with our configuration, and Grafana with our dashboards where it is installed, in the
foreground, on loopback, until Ctrl-C.

    python -m grafana.observe [--admin URL] [--prometheus-port 9090] [--grafana-port 3000] [--folder FOLDER]

What they keep lies in `.build/observe` of the checkout: four days, or half a gigabyte.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import httpx

from gateway.errors import EnvironmentProblem, GatewayError, PortInUse
from gateway.setup.light import checkout
from gateway.setup.progress import ProgressPrinter, Report
from gateway.setup.system import ensure_program
from grafana.server import FoundGrafana, find_grafana, grafana_environment, write_provisioning

ADMIN = "http://127.0.0.1:8001"
RETENTION = ("--storage.tsdb.retention.time=4d", "--storage.tsdb.retention.size=512MB")
"""The longest window of the rules is three days."""
READY_S = 60.0


class NoGateway(GatewayError):
    """Nothing to observe."""

    exit_code = 7


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says."""

    admin: str
    prometheus_port: int
    grafana_port: int
    folder: Path


@dataclass(frozen=True, slots=True)
class Program:
    """A program that runs for us, and where it writes what it has to say."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def ended(self) -> str:
        """How it ended, with its last words; empty while it runs."""
        code = self.process.poll()
        if code is None:
            return ""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-5:]
        return "\n".join([f"{self.name} ended with exit code {code}; the end of {self.log}:", *lines])


def main(arguments: Sequence[str], environ: Mapping[str, str]) -> int:
    """Runs until interrupted; the exit code is that of the error, 0 after Ctrl-C."""
    options = _parse(arguments)
    root = checkout()
    folder = options.folder
    stop = threading.Event()

    def interrupted(number: int, frame: FrameType | None) -> None:
        stop.set()

    # A terminal that is closed must not leave Prometheus and its port behind.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        require_gateway(options.admin)
        with ExitStack() as running:
            programs = [running.enter_context(_prometheus(options, root, folder, environ, ProgressPrinter(sys.stderr)))]
            found = find_grafana(environ)
            if found is not None:
                programs.append(running.enter_context(_grafana(options, found, root, folder, environ)))
            _await_ready(f"http://127.0.0.1:{options.prometheus_port}/-/ready", programs, stop)
            print(final_block(options, root, grafana=found is not None), flush=True)
            return _watch(programs, stop)
    except GatewayError as problem:
        print(f"observe: {problem}", file=sys.stderr)
        if isinstance(problem, EnvironmentProblem):
            print(f"To mend it: {problem.fix}", file=sys.stderr)
        return problem.exit_code


def require_gateway(admin: str) -> None:
    """Raise NoGateway when no gateway answers on its admin port."""
    try:
        with httpx.Client(trust_env=False, timeout=5) as http:
            http.get(f"{admin}/health").raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as problem:
        raise NoGateway(
            f"expected a running gateway's admin port at {admin}, found none ({problem or type(problem).__name__}). "
            "Start one in another terminal (`make demo` needs no engine, `make serve` serves a real model), then "
            "`make observe` again; an admin port elsewhere: `make observe ADMIN=http://HOST:PORT`."
        ) from problem


def prometheus_configuration(text: str, admin: str, rules: Path) -> str:
    """`deploy/prometheus/prometheus.yml` for this machine: the gateway's address, and rules by their full path."""
    return text.replace("127.0.0.1:8001", admin.removeprefix("http://")).replace("rules/*.yml", f"{rules}/*.yml")


def final_block(options: Options, root: Path, *, grafana: bool) -> str:
    """What there is to look at, and how to look at it."""
    lines = [
        "",
        f"  Prometheus   http://127.0.0.1:{options.prometheus_port}   targets: /targets   alerts: /alerts",
    ]
    if grafana:
        lines.append(
            f"  Grafana      http://127.0.0.1:{options.grafana_port}/dashboards   folder vllm-gateway, no login"
        )
    lines.append(f"  Console      {options.admin}/console   needs neither of them")
    if not grafana:
        lines += [
            "",
            "  No Grafana is on PATH. To see the dashboards in yours, either way:",
            f"    - provision them: {root / 'grafana' / 'provisioning'} (docs/observability.md says where to put it)",
            f"    - import the files of {root / 'grafana' / 'dashboards'} under Dashboards, New, Import",
            f"    with http://127.0.0.1:{options.prometheus_port} as a Prometheus data source",
        ]
    return "\n".join(
        [*lines, "", f"  Ctrl-C ends it; what was recorded stays in {options.folder} for the next time.", ""]
    )


def _parse(arguments: Sequence[str]) -> Options:
    parser = argparse.ArgumentParser(prog="python -m grafana.observe", description=__doc__.split("\n\n")[0])
    parser.add_argument("--admin", default=ADMIN, metavar="URL", help="the gateway's admin port (default: %(default)s)")
    parser.add_argument("--prometheus-port", type=int, default=9090, metavar="PORT", help="default: %(default)s")
    parser.add_argument("--grafana-port", type=int, default=3000, metavar="PORT", help="default: %(default)s")
    parser.add_argument("--folder", type=Path, metavar="FOLDER", help="for samples and logs (default: .build/observe)")
    given = parser.parse_args(arguments)
    if not given.admin.startswith("http://"):
        parser.error(f"--admin: expected http://HOST:PORT, found {given.admin!r}")
    folder = given.folder or checkout() / ".build" / "observe"
    return Options(given.admin.rstrip("/"), given.prometheus_port, given.grafana_port, folder)


@contextmanager
def _prometheus(
    options: Options, root: Path, folder: Path, environ: Mapping[str, str], report: Report
) -> Iterator[Program]:
    found = ensure_program("prometheus", root, environ, report)
    _require_free(options.prometheus_port, "--prometheus-port")
    folder.mkdir(parents=True, exist_ok=True)
    deployed = root / "deploy" / "prometheus"
    configuration = folder / "prometheus.yml"
    text = (deployed / "prometheus.yml").read_text(encoding="utf-8")
    configuration.write_text(prometheus_configuration(text, options.admin, deployed / "rules"), encoding="utf-8")
    command = [
        str(found.path),
        f"--config.file={configuration}",
        f"--storage.tsdb.path={folder / 'prometheus'}",
        *RETENTION,
        f"--web.listen-address=127.0.0.1:{options.prometheus_port}",
    ]
    with _started("prometheus", command, {**environ, **found.environ}, folder / "prometheus.log") as program:
        yield program


@contextmanager
def _grafana(
    options: Options, found: FoundGrafana, root: Path, folder: Path, environ: Mapping[str, str]
) -> Iterator[Program]:
    _require_free(options.grafana_port, "--grafana-port")
    provisioning = folder / "provisioning"
    write_provisioning(
        root / "grafana" / "provisioning",
        provisioning,
        prometheus=f"http://127.0.0.1:{options.prometheus_port}",
        dashboards=root / "grafana" / "dashboards",
    )
    settings = grafana_environment(
        folder / "grafana", provisioning, root / "grafana" / "dashboards", options.grafana_port
    )
    with _started("grafana", found.command, {**environ, **settings}, folder / "grafana.log") as program:
        yield program


@contextmanager
def _started(name: str, command: Sequence[str], environ: Mapping[str, str], log: Path) -> Iterator[Program]:
    """The program in a session of its own: a Ctrl-C in the terminal reaches us alone, and we end it in order."""
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, env=dict(environ), stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    try:
        yield Program(name, process, log)
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _require_free(port: int, option: str) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as problem:
            raise PortInUse(
                f"expected port {port} of 127.0.0.1 to be free, found it in use ({problem.strerror}); "
                f"end what listens there, or run: python -m grafana.observe {option} PORT"
            ) from problem


def _await_ready(url: str, programs: Sequence[Program], stop: threading.Event) -> None:
    waited = 0.0
    with httpx.Client(trust_env=False, timeout=2) as http:
        while not stop.is_set():
            _require_running(programs)
            try:
                if http.get(url).status_code == 200:
                    return
            except httpx.TransportError:
                pass  # not listening yet: the loop's deadline judges it
            if waited > READY_S:
                raise EnvironmentProblem(
                    f"{url} was not ready within {READY_S:.0f} s", fix=f"look at {programs[0].log}"
                )
            stop.wait(0.2)
            waited += 0.2


def _watch(programs: Sequence[Program], stop: threading.Event) -> int:
    while not stop.wait(0.5):
        _require_running(programs)
    return 0


def _require_running(programs: Sequence[Program]) -> None:
    for program in programs:
        if ended := program.ended():
            raise EnvironmentProblem(ended, fix=f"see {program.log}, then run `make observe` again")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], os.environ))
