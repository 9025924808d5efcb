"""
What one load process can take on this machine: token events per second, from its own processor time per event.

The golden server in a process of its own sends events one by one, as an engine does, and this process reads them with
the code that reads in a run. One over the processor seconds per event is the ceiling. Processor time, not the wall
clock: a machine that is busy with something else gives nearly the same figure. It is measured once per machine and
version, and kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import gevent

from loadtest.call import Call
from loadtest.http_client import Client
from loadtest.ledger import Ledger
from loadtest.scenarios.base import Request
from loadtest.stalls import StallGuard
from loadtest.target import Target, parse_target

STREAMS = 100
TOKENS = 60
INTERVAL_MS = 25
_BODY = b'{"model":"m","stream":true,"stream_options":{"include_usage":true},"messages":[]}'
_CHAT = Request("/v1/chat/completions", _BODY, True, "chat")


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Of one load process."""

    events_per_s: float
    cpu_us_per_event: float
    measured_at_events_per_s: float


class CeilingError(Exception):
    """The client could not be measured."""


def measure_ceiling(streams: int = STREAMS, tokens: int = TOKENS) -> Ceiling:
    """
    Takes two to three seconds; everything stays on loopback.

    Raises:
        CeilingError: the golden server did not answer properly.
    """
    with _paced_server(tokens) as target, StallGuard(10.0) as guard:
        ledger = Ledger()
        clients = [Client(target, guard=guard) for _ in range(streams)]
        for client in clients[:2]:
            _one(client, ledger, target)  # what is done for the first time is not what is measured
        measured = Ledger()
        began, cpu = time.perf_counter(), time.process_time()
        gevent.joinall([gevent.spawn(_one, client, measured, target) for client in clients], raise_error=True)
        cpu_s, wall_s = time.process_time() - cpu, time.perf_counter() - began
        for client in clients:
            client.close()
    if measured.failed or measured.token_events != streams * tokens:
        raise CeilingError(
            f"expected {streams * tokens} events of {streams} streams from the built-in server, found "
            f"{measured.token_events} and {dict(measured.failures)}"
        )
    per_event = cpu_s / measured.token_events
    return Ceiling(1 / per_event, per_event * 1e6, measured.token_events / wall_s)


def known_ceiling(environ: Mapping[str, str], *, anew: bool) -> tuple[Ceiling, bool]:
    """
    The ceiling of this machine and version, and whether it was measured just now.

    Raises:
        CeilingError: it could not be measured. What cannot be stored is measured again next time.
    """
    file = _cache_folder(environ) / f"loadtest-ceiling-{_fingerprint()}.json"
    if not anew:
        with contextlib.suppress(OSError, ValueError, TypeError):
            return Ceiling(**json.loads(file.read_text())), False
    ceiling = measure_ceiling()
    with contextlib.suppress(OSError):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(asdict(ceiling)))
    return ceiling, True


def _cache_folder(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CACHE_HOME") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".cache")
    return Path(base) / "vllm-gateway"


def _fingerprint() -> str:
    """What the figure depends on: the machine, the interpreter, and the versions of what reads."""
    parts = [platform.node(), platform.machine(), platform.python_version(), str(os.cpu_count())]
    parts += [version(name) for name in ("vllm-gateway", "gevent", "httptools", "msgspec", "locust")]
    with contextlib.suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        parts.append(next(line for line in lines if line.startswith("model name")))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _one(client: Client, ledger: Ledger, target: Target) -> None:
    ledger.schedule()
    now = time.perf_counter()
    Call(_CHAT, ledger, now, now).perform(client, target, None)


@contextmanager
def _paced_server(tokens: int) -> Iterator[Target]:
    """The golden server: every stream has timers of its own, so hardly any two events come together."""
    flags = ("--tokens", str(tokens), "--ttft-ms", str(INTERVAL_MS), "--gap-ms", str(INTERVAL_MS))
    command = [sys.executable, "-m", "loadtest.servers.golden_server", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            if not address:
                raise CeilingError("expected the built-in server to print its address, it ended")
            yield parse_target(address.rpartition(" ")[2])
        finally:
            server.terminate()
