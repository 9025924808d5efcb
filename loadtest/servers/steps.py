"""
The vocabulary of a fault script: what the scripted server does with one request, step by step.

A script is a sequence of steps. Steps are values, so scripts can be built once, compared, printed and reused. Names in
`Gate` and `Mark` are meeting points with the test: see `FaultServer.reached` and `FaultServer.release`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise


@dataclass(frozen=True, slots=True)
class Send:
    """
    Writes these bytes.

    `cuts` are positions at which the write is split; `every` splits into pieces of that many bytes instead. Between two
    pieces the server yields `gap_s` seconds (0: one turn of the event loop, in which a peer in the same loop can read).
    """

    data: bytes
    cuts: tuple[int, ...] = ()
    every: int = 0
    gap_s: float = 0.0

    def pieces(self) -> list[bytes]:
        """The bytes of each write, in order."""
        if self.every:
            return [self.data[i : i + self.every] for i in range(0, len(self.data), self.every)]
        edges = [0, *self.cuts, len(self.data)]
        return [self.data[a:b] for a, b in pairwise(edges) if a < b]


@dataclass(frozen=True, slots=True)
class Flood:
    """Writes `data` over and over until `total` bytes are written, waiting for the peer whenever the socket is full."""

    data: bytes
    total: int


@dataclass(frozen=True, slots=True)
class Gate:
    """Marks `name` as reached, then waits until the test releases it."""

    name: str


@dataclass(frozen=True, slots=True)
class Mark:
    """Marks `name` as reached and goes on."""

    name: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """Waits that many seconds: for pacing only, never to order a test (use `Gate`)."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Stall:
    """Does nothing until the peer closes the connection or the server ends: a hung worker."""


@dataclass(frozen=True, slots=True)
class StopReading:
    """Stops taking bytes from the socket, so that the peer's writes fill up. The peer's close goes unseen meanwhile."""


@dataclass(frozen=True, slots=True)
class ResumeReading:
    """Takes bytes from the socket again."""


@dataclass(frozen=True, slots=True)
class Reset:
    """Ends the connection with RST (SO_LINGER 0), dropping what was not sent yet."""


@dataclass(frozen=True, slots=True)
class Fin:
    """Closes the connection properly once everything written is out."""


@dataclass(frozen=True, slots=True)
class HalfClose:
    """Shuts down the server's sending side (FIN) and keeps reading."""


Step = Send | Flood | Gate | Mark | Sleep | Stall | StopReading | ResumeReading | Reset | Fin | HalfClose
Script = Sequence[Step]
