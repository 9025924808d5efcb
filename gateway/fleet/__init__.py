"""
A gateway process's view of the workers: snapshots, leases, circuit breakers, and the link to the supervisor.
"""

from gateway.fleet.board import BoardFull, InFlightBoard
from gateway.fleet.breaker import Breaker, BreakerLimits
from gateway.fleet.dispatcher import FleetDispatcher, Scheduler
from gateway.fleet.lease import WorkerLease
from gateway.fleet.link import SupervisorLink
from gateway.fleet.member import Member, WorkerGauges
from gateway.fleet.row import BoardRow, KeyCount
from gateway.fleet.view import FleetView

__all__ = [
    "BoardFull",
    "BoardRow",
    "Breaker",
    "BreakerLimits",
    "FleetDispatcher",
    "FleetView",
    "InFlightBoard",
    "KeyCount",
    "Member",
    "Scheduler",
    "SupervisorLink",
    "WorkerGauges",
    "WorkerLease",
]
