"""Prompts: reproducible, and never the same twice."""

from __future__ import annotations

import json
from itertools import islice

from loadtest.workload import ChatPlan, chat_bodies

PLAN = ChatPlan("m", max_tokens=7, prompt_words=50)


def test_the_same_seed_and_user_give_the_same_bodies() -> None:
    """A run can be repeated."""
    first, second = (list(islice(chat_bodies(PLAN, 3), 20)) for _ in range(2))

    assert first == second


def test_no_two_prompts_share_a_beginning() -> None:
    """Over users and requests: a prefix cache cannot help by accident."""
    prompts = [
        json.loads(body)["messages"][0]["content"] for user in range(20) for body in islice(chat_bodies(PLAN, user), 50)
    ]

    assert len({prompt[:14] for prompt in prompts}) == len(prompts)


def test_a_body_asks_for_a_stream_with_usage() -> None:
    """Tokens are counted from usage, so it must be asked for."""
    body = json.loads(next(chat_bodies(PLAN, 0)))

    assert (body["model"], body["max_tokens"], body["stream"]) == ("m", 7, True)
    assert body["stream_options"] == {"include_usage": True}
    assert "ignore_eos" not in body, "OpenAI's own API refuses unknown fields"
    assert 45 <= len(body["messages"][0]["content"].split()) <= 55
