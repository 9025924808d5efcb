"""
The log: named events with fields, one line each, JSON for machines or text for people.

Writing never waits: lines go to a thread of their own through a bounded queue (`lines`), and an error that repeats is
counted instead of written (`repeats`).
"""

from gateway.log.events import EventLog
from gateway.log.foreign import adopt_foreign_logs
from gateway.log.request_line import request_fields

__all__ = ["EventLog", "adopt_foreign_logs", "request_fields"]
