"""
Admission: a permit at once, or a bounded wait in the model's queue.

The permits are the fleet's leases, counted in the board that all gateway processes share; here is decided who gets one
that has come free, and who is sent away. The order and the rate are pure; `Room` is the shell that acts on them.
"""

from gateway.admission.admission import Admission, QueueGauges
from gateway.admission.drain_rate import DrainRate
from gateway.admission.limits import QueueLimits, share
from gateway.admission.line import Line, Place
from gateway.admission.room import Room, Turn

__all__ = ["Admission", "DrainRate", "Line", "Place", "QueueGauges", "QueueLimits", "Room", "Turn", "share"]
