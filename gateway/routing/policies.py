"""The catalogue of policies: named combinations of scorers."""

from __future__ import annotations

from gateway.routing.scheduler import Scheduler
from gateway.routing.scorers import Equal, LeastInFlight
from gateway.types import Policy


def scheduler(policy: Policy = Policy.LEAST_LOADED) -> Scheduler:
    """A fresh scheduler; each model has its own, so that turns are fair within a model."""
    match policy:
        case Policy.LEAST_LOADED:
            return Scheduler(policy, [(1.0, LeastInFlight())])
        case Policy.ROUND_ROBIN:
            return Scheduler(policy, [(1.0, Equal())])
