"""The console: one page on the admin port that shows what the fleet does and lets its owner talk to it."""

from gateway.control.web.history import History
from gateway.control.web.routes import CHAT_PATH, console_routes

__all__ = ["CHAT_PATH", "History", "console_routes"]
