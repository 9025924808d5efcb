"""Function calls of the simulated model: which tool it calls, and arguments made of words."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from loadtest.servers.simulation.answers import Answer


class Arguments(Answer):
    """The arguments of a call, token by token: one JSON object with one text in it, whatever the tool's schema says."""

    def __init__(self, prompt: str, choice: int = 0) -> None:
        super().__init__(prompt, choice)
        self.length = 3 + self.length % 16

    def token(self, position: int) -> str:
        """The text of the token at a position; nothing but space after the end, as under a grammar."""
        if position == 0:
            return '{"place": "'
        if position < self.length - 1:
            return super().token(position - 1)
        return '"}' if position == self.length - 1 else " "


@dataclass(frozen=True, slots=True)
class ForcedCall:
    """The function that must be called, and the finish reason of the call: "stop" for a named one, as with vLLM."""

    function: str
    reason: str


def forced_call(value: dict[str, Any]) -> ForcedCall | None:
    """
    The named function, or the first one where any is required.

    With `auto` the simulated model prefers prose.
    """
    tools, choice = value.get("tools"), value.get("tool_choice")
    if not isinstance(tools, list) or not tools:
        return None
    if isinstance(choice, dict):
        return ForcedCall(str((choice.get("function") or {}).get("name")), "stop")
    if choice == "required":
        return ForcedCall(str((tools[0].get("function") or {}).get("name")), "tool_calls")
    return None


def tools_text(value: dict[str, Any]) -> str:
    """What a chat template writes of the tools before the messages."""
    tools = value.get("tools")
    return f"<tools>{json.dumps(tools)}\n" if isinstance(tools, list) and tools else ""
