"""What a run does, as one value that worker processes get as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from loadtest.arrivals import Arrivals
from loadtest.scenarios import scenarios
from loadtest.scenarios.base import Context, Scenario
from loadtest.scenarios.options import make
from loadtest.target import Target

ConnectionPolicy = Literal["keep", "new"]


@dataclass(frozen=True, slots=True)
class RunPlan:
    """Either `users` (closed loop) or `arrivals` (open loop). `drain_s` is the time streams get after the end."""

    target: Target
    scenario: str
    context: Context
    duration_s: float
    options: dict[str, str] = field(default_factory=dict)
    users: int | None = None
    arrivals: Arrivals | None = None
    drain_s: float = 60.0
    seed: int = 1
    processes: int = 1
    max_in_flight: int = 1000
    connections: ConnectionPolicy = "keep"
    connect_timeout_s: float = 10.0
    read_timeout_s: float = 120.0
    api_key: str | None = None
    run_id: str = "0"
    """Part of every request id: they must not repeat between runs, since servers log them."""

    def make_scenario(self) -> Scenario:
        """
        The scenario, made for the target.

        Raises:
            UsageError: an option it does not take.
        """
        return make(scenarios()[self.scenario], self.context, self.options)

    def locust_users(self) -> int:
        """How many users Locust starts: in an open loop one per process, which dispatches."""
        return self.processes if self.users is None else self.users

    def in_flight_limit(self, process: int) -> int:
        """This process's share of `max_in_flight`, at least one. Users of a closed loop limit themselves."""
        if self.users is not None:
            return self.users
        return max(1, self.max_in_flight // self.processes + (process < self.max_in_flight % self.processes))
