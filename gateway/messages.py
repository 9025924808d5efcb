"""
What the supervisor and its gateway processes say to each other over their Unix socket pair.

One JSON object a line, tagged by `type`. The channel's end is itself a message: a gateway process that loses it stops
accepting, finishes its streams within the drain time, and exits.
"""

from __future__ import annotations

import msgspec

from gateway.types import FleetSnapshot


class Configure(msgspec.Struct, frozen=True, tag="configure"):
    """
    First message to a gateway process: the validated settings as JSON, so that no one reads the file twice.

    `workers` are pairs of model and worker name in the supervisor's order: with the models they are the layout of the
    metrics board. `keys_file` is where the API keys' digests are, or will be ("" for nowhere); each process follows it.
    `row` is the process's own in the in-flight board, which no other living process has.
    """

    settings_json: str
    slot: int
    keys_file: str
    workers: tuple[tuple[str, str], ...] = ()
    row: int = 0


class Snapshot(msgspec.Struct, frozen=True, tag="snapshot"):
    """The fleet changed."""

    fleet: FleetSnapshot


class Drain(msgspec.Struct, frozen=True, tag="drain"):
    """
    Stop accepting, finish what runs within `deadline_s` seconds, exit.

    `replaced`: another process accepts on the same address, so what still arrives here is served; otherwise the whole
    gateway ends, and it is turned away.
    """

    deadline_s: float
    replaced: bool = False


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """
    A gateway process has its settings and is listening. `release`: the version of the code it runs; `compiled`: whether
    its hot modules run compiled.
    """

    pid: int
    release: str = ""
    compiled: bool = False


class WorkerFailure(msgspec.Struct, frozen=True, tag="worker_failure"):
    """
    A gateway process saw a worker fail (never a client's fault).

    `kind` is a `RetryReason` or `Outcome` value; `detail` one line for the log.
    """

    worker: str
    launch_id: str
    kind: str
    detail: str


class WorkerLoad(msgspec.Struct, frozen=True):
    """One worker's load as a gateway process sees it; `silent_s`: seconds since the last byte on any of its streams."""

    worker: str
    launch_id: str
    in_flight: int
    silent_s: float | None


class LoadReport(msgspec.Struct, frozen=True, tag="load_report"):
    """Once a second: what this gateway process has in flight on each worker it uses, and clients' connections."""

    loads: tuple[WorkerLoad, ...]
    connections: int = 0


class Lines:
    """
    Received bytes as the lines they are, however they were cut. `unfinished`: bytes after the last line's end.

    Each byte is looked at once: one that sends a long line in small pieces costs no more than another.
    """

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self.unfinished = 0

    def feed(self, received: bytes) -> list[bytes]:
        """The lines that are whole now, without their ends."""
        first, *others = received.split(b"\n")
        self._pieces.append(first)
        self.unfinished += len(first)
        if not others:
            return []
        *whole, rest = others
        lines = [b"".join(self._pieces), *whole]
        self._pieces = [rest]
        self.unfinished = len(rest)
        return lines


ToGateway = Configure | Snapshot | Drain
ToSupervisor = Hello | WorkerFailure | LoadReport


def encode(message: ToGateway | ToSupervisor) -> bytes:
    """One message as a line."""
    return msgspec.json.encode(message) + b"\n"


def decode_to_gateway(line: bytes) -> ToGateway:
    """Parse a line the supervisor sent. Raises msgspec.DecodeError on anything else."""
    return _TO_GATEWAY.decode(line)


def decode_to_supervisor(line: bytes) -> ToSupervisor:
    """Parse a line a gateway process sent. Raises msgspec.DecodeError on anything else."""
    return _TO_SUPERVISOR.decode(line)


_TO_GATEWAY: msgspec.json.Decoder[ToGateway] = msgspec.json.Decoder(ToGateway)
_TO_SUPERVISOR: msgspec.json.Decoder[ToSupervisor] = msgspec.json.Decoder(ToSupervisor)
