"""
A gateway process's view of the workers: snapshots, leases, circuit breakers, and the link to the supervisor.
"""

from gateway.fleet.breaker import Breaker, BreakerLimits
from gateway.fleet.dispatcher import FleetDispatcher, Scheduler
from gateway.fleet.lease import WorkerLease
from gateway.fleet.link import SupervisorLink
from gateway.fleet.member import Member, WorkerGauges
from gateway.fleet.view import FleetView

__all__ = [
    "Breaker",
    "BreakerLimits",
    "FleetDispatcher",
    "FleetView",
    "Member",
    "Scheduler",
    "SupervisorLink",
    "WorkerGauges",
    "WorkerLease",
]
