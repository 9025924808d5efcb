"""A worker as a routing decision sees it."""

from __future__ import annotations

from gateway.types import WorkerState


class Candidate:
    """
    What a routing decision may know of one worker: a copy, so that no decision can race the counts.

    `in_flight` is of all gateway processes together, `full` that it is as many as the worker may have, `admits` the
    circuit breaker's word. Neither tuple nor dataclass, and in a module that is compiled: eight of them are made for
    every request.
    """

    __slots__ = ("admits", "full", "in_flight", "state", "worker")

    def __init__(self, worker: str, state: WorkerState, in_flight: int, admits: bool, full: bool = False) -> None:
        self.worker = worker
        self.state = state
        self.in_flight = in_flight
        self.admits = admits
        self.full = full
