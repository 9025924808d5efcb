"""What is particular to single scenarios."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.outcomes import Outcome
from loadtest.scenarios.replay import Replay
from loadtest.scenarios.tenants import Tenants
from loadtest.target import UsageError
from tests.loadtest.scenarios.sessions import CONTEXT, MOONCAKE, body_of, contents, made, requests_of


def test_a_fixed_answer_is_forced_and_a_free_one_is_not() -> None:
    """Forced means min_tokens and max_tokens alike, and no end by the model."""
    fixed = body_of(requests_of(made("chat", output_tokens="7"))[0])
    free = body_of(requests_of(made("chat", output_tokens="7", output="free"))[0])

    assert (7, 7, True) == (fixed["max_tokens"], fixed["min_tokens"], fixed["ignore_eos"])
    assert 7 == free["max_tokens"]
    assert not {"min_tokens", "ignore_eos"} & set(free)


def test_counts_in_every_event_are_asked_for_on_request() -> None:
    """vLLM's continuous_usage_stats."""
    body = body_of(requests_of(made("chat", replace(CONTEXT, continuous_usage=True)))[0])

    assert {"include_usage": True, "continuous_usage_stats": True} == body["stream_options"]


@pytest.mark.parametrize(("room", "words"), [(8192, 4096), (2048, 1024)])
def test_a_long_prompt_is_as_long_as_the_model_allows(room: int, words: int) -> None:
    """4,096 tokens, or half of the context; the template's own tokens are part of it."""
    request = requests_of(made("long-prompt", replace(CONTEXT, max_model_len=room)))[0]

    assert words - CONTEXT.scale.chat_tokens == len(contents(request)[0].split())


def test_a_shared_system_prompt_is_one_of_the_given_number() -> None:
    """The questions behind it all differ."""
    scenario = made("shared-prompt", systems="3", system_tokens="100")
    found = [contents(requests_of(scenario, number)[0]) for number in range(60)]

    assert 3 == len({system for system, _ in found})
    assert 60 == len({question for _, question in found})
    assert {100} == {len(system.split()) for system, _ in found}


def test_a_conversation_carries_the_models_own_answers() -> None:
    """Each turn repeats the whole history, and waits as long as a person thinks."""
    first, second, third = requests_of(made("multi-turn", turns="3", think_s="1.5"), text="I see.")
    history = body_of(third)["messages"]

    assert ["user", "assistant", "user", "assistant", "user"] == [m["role"] for m in history]
    assert ["I see.", "I see."] == [m["content"] for m in history if m["role"] == "assistant"]
    assert history[:3] == body_of(second)["messages"]
    assert ["turn-1", "turn-2", "turn-3"] == [r.kind for r in (first, second, third)]
    assert [0.0, 1.5, 1.5] == [r.after_s for r in (first, second, third)]


@pytest.mark.parametrize("name", ["multi-turn", "tools"])
def test_a_session_ends_with_its_first_failure(name: str) -> None:
    """Nobody goes on talking to an error."""
    assert 1 == len(requests_of(made(name), outcome=Outcome.IN_BAND_ERROR))


def test_passages_are_popular_by_rank_and_the_same_wherever_they_come() -> None:
    """With three passages the first is drawn 6/11 of the time; a corpus of three has three texts."""
    scenario = made("rag", corpus="3", passages="1", passage_tokens="64")
    passages = [contents(requests_of(scenario, number)[0])[1].split("\n\n")[0] for number in range(600)]
    counts = sorted((passages.count(text) for text in set(passages)), reverse=True)

    assert 3 == len(counts)
    assert 0.45 < counts[0] / 600 < 0.65
    assert 1 == len({contents(requests_of(scenario, number)[0])[0] for number in range(20)})


@pytest.mark.parametrize("choice", ["required", "auto"])
def test_tools_are_offered_called_and_their_result_answered(choice: str) -> None:
    """The second request belongs to the call in its own history."""
    call, result = requests_of(made("tools", tools="2", choice=choice))
    body, messages = body_of(call), body_of(result)["messages"]

    assert choice == body["tool_choice"]
    assert 2 == len(body["tools"])
    assert messages[1]["tool_calls"][0]["id"] == messages[2]["tool_call_id"]
    assert messages[1]["tool_calls"][0]["function"]["name"] in [t["function"]["name"] for t in body["tools"]]
    assert "tools" not in body_of(result)
    assert not {"ignore_eos", "min_tokens"} & set(body), "a grammar ends the call"
    assert 64 == body_of(result)["min_tokens"], "and a model may have nothing to say to a result"


def test_a_named_tool_is_one_of_those_offered() -> None:
    """The default, which needs no tool parser on the server."""
    body = body_of(requests_of(made("tools"))[0])

    assert body["tool_choice"]["function"]["name"] in [t["function"]["name"] for t in body["tools"]]


def test_half_of_the_clients_leave_at_random_points() -> None:
    """By event within the answer, or by time within the limit; never both."""
    scenario = made("cancel", output_tokens="32", early_s="0.2")
    found = [requests_of(scenario, number)[0] for number in range(800)]
    midway = [r.cancel_after_events for r in found if r.kind == "leaves-midway"]
    early = [r.cancel_after_s for r in found if r.kind == "leaves-early"]
    stay = [r for r in found if r.kind == "stays"]

    assert 340 < len(stay) < 460
    assert {None} == {r.cancel_after_events for r in stay} | {r.cancel_after_s for r in stay}
    assert set(range(1, 32)) == set(midway)
    assert all(moment is not None and 0 <= moment <= 0.2 for moment in early)
    assert 60 < len(early) < 140


def test_tenants_have_their_shares_shapes_and_keys(tmp_path: Path) -> None:
    """From a file; the keys are in no representation of the scenario."""
    (tmp_path / "tenants.toml").write_text(
        '[big]\nshare = 3\nprompt_tokens = "20-30"\noutput_tokens = 5\nkey = "secret-1"\n[small]\nprompt_tokens = 40\n'
    )
    scenario = made("tenants", file=str(tmp_path / "tenants.toml"))
    found = [requests_of(scenario, number)[0] for number in range(400)]
    big = [r for r in found if r.tenant == "big"]

    assert {"big", "small"} == {r.tenant for r in found}
    assert 260 < len(big) < 340
    assert {"secret-1"} == {r.api_key for r in big}
    assert {None} == {r.api_key for r in found if r.tenant == "small"}
    assert {5} == {body_of(r)["max_tokens"] for r in big}
    assert "secret" not in repr(scenario)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a table like"),
        ("a = 1", r"expected a table \[a\]"),
        ("[a]\nshares = 1", r"found shares"),
        ("[a]\nshare = 0", "expected a share above 0"),
        ("[a]\nprompt_tokens = 'many'", "prompt_tokens in .a. of .*found 'many'"),
        ("[a]\nkey = 5", "expected a text as key"),
        ("[a", "expected TOML"),
    ],
)
def test_a_bad_file_of_tenants_is_named_with_what_is_wrong(text: str, message: str, tmp_path: Path) -> None:
    """Before anything is sent."""
    (tmp_path / "tenants.toml").write_text(text)

    with pytest.raises(UsageError, match=message):
        Tenants(CONTEXT, file=str(tmp_path / "tenants.toml"))


def test_a_trace_is_replayed_in_its_times_and_lengths(tmp_path: Path) -> None:
    """Twice as fast; blocks with the same name are the same text, the rest is new."""
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    scenario = Replay(CONTEXT, file=str(tmp_path / "trace.jsonl"), time_scale=2.0)
    first, second, again = (requests_of(scenario, number)[0] for number in (0, 1, 2))
    words = [contents(request)[0].split() for request in (first, second, again)]

    assert [0.0, 0.25] == scenario.arrival_times()
    assert [5, 6, 5] == [body_of(request)["max_tokens"] for request in (first, second, again)]
    assert [1100 - 8, 1040 - 8, 1100 - 8] == list(map(len, words))
    assert words[0][:512] == words[1][:512]
    assert words[0][1024:] != words[2][1024:], "what lies behind the shared blocks is new in each round"


def test_recorded_lengths_can_be_cut(tmp_path: Path) -> None:
    """Cut by option, and to what the model has room for."""
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    capped = Replay(CONTEXT, file=str(tmp_path / "trace.jsonl"), max_prompt_tokens=600, max_output_tokens=2)
    small = Replay(replace(CONTEXT, max_model_len=300), file=str(tmp_path / "trace.jsonl"))

    assert 600 - 8 == len(contents(requests_of(capped)[0])[0].split())
    assert 2 == body_of(requests_of(capped)[0])["max_tokens"]
    assert 300 - 5 - 8 - 8 == len(contents(requests_of(small)[0])[0].split())


def test_conversations_are_asked_turn_by_turn(tmp_path: Path) -> None:
    """With our model's answers between; there are no times to follow."""
    (tmp_path / "talk.json").write_text(
        '[{"id": "a", "conversations": [{"from": "human", "value": "One?"}, {"from": "gpt", "value": "Yes, one."},'
        ' {"from": "human", "value": "Two?"}, {"from": "gpt", "value": "That is two, of course, as you know."}]},'
        ' {"id": "b", "conversations": [{"from": "human", "value": "Three?"}, {"from": "gpt", "value": "Three."}]}]'
    )
    scenario = Replay(CONTEXT, file=str(tmp_path / "talk.json"))
    one, two = requests_of(scenario, 0, text="Mine.")
    (three,) = requests_of(scenario, 1)

    assert ["first-turn", "later-turn", "first-turn"] == [r.kind for r in (one, two, three)]
    assert contents(one)[0].endswith("\nOne?")
    assert [contents(one)[0], "Mine.", "Two?"] == contents(two)
    assert [2, 9] == [body_of(r)["max_tokens"] for r in (one, two)], "four characters to a token"
    assert [] == list(scenario.arrival_times())


def test_a_conversation_that_outgrows_the_context_ends(tmp_path: Path) -> None:
    """It never asks what the server would refuse."""
    turns = [{"from": "human", "value": "word " * 40}, {"from": "gpt", "value": "yes"}] * 8
    (tmp_path / "talk.json").write_text(json.dumps([{"id": "a", "conversations": turns}]))
    scenario = Replay(replace(CONTEXT, max_model_len=150), file=str(tmp_path / "talk.json"))

    assert 1 <= len(requests_of(scenario)) < 4


@pytest.mark.parametrize(("options", "message"), [({}, "add --option file=PATH"), ({"skip": "2"}, "found none")])
def test_a_replay_without_entries_is_refused(options: dict[str, str], message: str, tmp_path: Path) -> None:
    """Nothing named, or nothing left."""
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    file = {"file": str(tmp_path / "trace.jsonl")} if options else {}

    with pytest.raises(UsageError, match=message):
        made("replay", **file, **options)


def test_the_temperature_is_the_same_in_every_request() -> None:
    """Greedy unless asked otherwise, so that two runs do equal work."""
    warm = replace(CONTEXT, temperature=0.7)

    for name in ("chat", "multi-turn", "tools"):
        greedy = [json.loads(request.body)["temperature"] for request in requests_of(made(name))]
        other = [json.loads(request.body)["temperature"] for request in requests_of(made(name, warm))]
        assert {0} == set(greedy)
        assert {0.7} == set(other)
