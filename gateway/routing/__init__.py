"""
The choice of a worker, pure: frozen candidates in, a decision out. It never awaits and does no I/O.
"""

from gateway.routing.decision import Considered, Decision, Question, Scorer
from gateway.routing.policies import scheduler
from gateway.routing.router import Router
from gateway.routing.scheduler import Scheduler

__all__ = ["Considered", "Decision", "Question", "Router", "Scheduler", "Scorer", "scheduler"]
