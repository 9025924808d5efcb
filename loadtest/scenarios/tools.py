"""Function calling: a question with tools, and a second one with what a tool returned."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from loadtest.outcomes import Outcome
from loadtest.scenarios.base import Context, Defaults, Session
from loadtest.scenarios.bodies import Ending, chat_request, check_fits, compact, user
from loadtest.scenarios.lengths import Length, fixed
from loadtest.scenarios.options import OUTPUT, about

Choice = Literal["named", "required", "auto"]
_SUBJECTS = ("weather", "stock", "train", "hotel", "flight", "recipe", "route", "calendar", "parcel", "museum")


@dataclass(frozen=True, slots=True)
class Tools:
    """
    A session asks with tools at hand; then it sends a tool's result and gets prose.

    The result belongs to a made-up call, so that its length does not hang on what the model wrote. Calls are never
    forced to a length: a grammar decides when their arguments are complete.
    """

    name: ClassVar[str] = "tools"
    description: ClassVar[str] = "function calls, and the answers to their results"
    kinds: ClassVar[tuple[str, ...]] = ("tool-call", "tool-result")
    defaults: ClassVar[Defaults] = Defaults(users=4)

    context: Context
    tools: int = field(
        default=4, metadata=about("tool definitions in each request; they come on top", low=1, high=len(_SUBJECTS))
    )
    choice: Choice = field(
        default="named",
        metadata=about("named: one of the functions; required: any of them; auto: the model decides"),
    )
    question_tokens: Length = field(default=fixed(96), metadata=about("tokens of the question, template included"))
    result_tokens: Length = field(default=fixed(64), metadata=about("tokens of what the tool returned"))
    call_tokens: Length = field(default=fixed(96), metadata=about("limit of the call"))
    output_tokens: Length = field(default=fixed(64), metadata=about("tokens of the answer to the result"))
    output: Ending = field(default="fixed", metadata=about(OUTPUT))

    def __post_init__(self) -> None:
        scale = self.context.scale
        definitions = scale.tokens_of(json.dumps(self._tools()))
        question = self.question_tokens.longest + definitions
        result = scale.prompt_tokens((self.question_tokens.longest, self.result_tokens.longest, 0))
        check_fits(self.context, self.name, question, self.call_tokens.longest)
        check_fits(self.context, self.name, result, self.output_tokens.longest)

    def session(self, rng: random.Random, number: int) -> Session:
        """A call and the answer to its result."""
        context, scale = self.context, self.context.scale
        tokens = self.question_tokens.draw(rng) - scale.chat_tokens
        question = scale.text(rng, tokens, before=scale.salt(rng, context.salt))
        tools = self._tools()
        chosen = rng.choice(tools)["function"]["name"]
        wanted = {"type": "function", "function": {"name": chosen}} if self.choice == "named" else self.choice
        messages: list[dict[str, Any]] = [user(question)]
        limit = self.call_tokens.draw(rng)
        answer = yield chat_request(
            context, messages, limit, "free", kind="tool-call", extra={"tools": tools, "tool_choice": wanted}
        )
        if answer.outcome is not Outcome.OK:
            return
        call = {"id": "call_0", "type": "function", "function": {"name": chosen, "arguments": '{"place":"here"}'}}
        returned = compact({"found": scale.text(rng, self.result_tokens.draw(rng))}).decode()
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0", "content": returned},
        ]
        yield chat_request(context, messages, self.output_tokens.draw(rng), self.output, kind="tool-result")

    def _tools(self) -> list[dict[str, Any]]:
        return [_tool(subject) for subject in _SUBJECTS[: self.tools]]


def _tool(subject: str) -> dict[str, Any]:
    properties = {
        "place": {"type": "string", "description": f"where to look the {subject} up"},
        "days": {"type": "integer", "minimum": 1, "maximum": 7},
    }
    return {
        "type": "function",
        "function": {
            "name": f"find_{subject}",
            "description": f"Finds the {subject} of a place.",
            "parameters": {"type": "object", "properties": properties, "required": ["place"]},
        },
    }
