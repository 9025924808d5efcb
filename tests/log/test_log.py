"""The log: one line per event, whole, without anything secret, and bounded when errors repeat."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import given
from hypothesis import strategies as st

from gateway.log import EventLog, request_fields
from gateway.record import ExchangeRecord
from gateway.types import Endpoint, Family, Outcome, Phase, RetryReason, Stage


@dataclass
class FakeClock:
    now_s: float = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def unix(self) -> float:
        return 1_764_441_913.908 + self.now_s


@pytest.fixture
def lines() -> list[bytes]:
    return []


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def record(**more: Any) -> ExchangeRecord:
    fields: dict[str, Any] = {"model": "llama", "tenant": "ci", "outcome": Outcome.OK, "status": 200} | more
    return ExchangeRecord("req-1", Endpoint.CHAT_COMPLETIONS, Family.CHAT, 12.5, **fields)


def test_an_event_is_one_json_line_with_time_level_and_name_first(lines: list[bytes], clock: FakeClock) -> None:
    """ISO 8601 in UTC, to the millisecond."""
    EventLog(lines.append, clock, context={"slot": 0}).event("worker_ready", worker="llama-0", folder=Path("/m"))

    assert [
        b'{"time":"2025-11-29T18:45:13.908Z","level":"info","event":"worker_ready","slot":0,'
        b'"worker":"llama-0","folder":"/m"}\n'
    ] == lines


def test_text_is_for_people(lines: list[bytes], clock: FakeClock) -> None:
    """The same fields, readable; what is not one word is quoted."""
    EventLog(lines.append, clock, "text").event("worker_failed", level="error", why="out of memory", worker="llama-0")

    assert [b'2025-11-29T18:45:13.908Z error   worker_failed why="out of memory" worker=llama-0\n'] == lines


@pytest.mark.parametrize("style", ["json", "text"])
@given(value=st.text())
def test_no_value_can_forge_a_line(style: Any, value: str) -> None:
    """Newlines, quotes, control characters: always exactly one line of valid UTF-8, from which the value comes back."""
    lines: list[bytes] = []

    EventLog(lines.append, FakeClock(), style).event("event", detail=value)

    assert [b"\n"] == [line[-1:] for line in lines]
    assert 1 == lines[0].count(b"\n")
    if style == "json":
        assert value == json.loads(lines[0])["detail"]
    else:
        assert lines[0].decode().rstrip("\n").isprintable()


@given(st.text().map(lambda text: text + "\udc80"))
def test_a_file_name_that_is_no_utf8_is_written_escaped(value: str) -> None:
    """Such a name must not cost the line that mentions it."""
    lines: list[bytes] = []

    EventLog(lines.append, FakeClock()).event("event", path=value)

    assert "\\udc80" in json.loads(lines[0])["path"]


def test_the_request_line_has_ids_outcome_phases_and_tokens(lines: list[bytes], clock: FakeClock) -> None:
    """Everything an operator greps for, times in milliseconds."""
    finished = record(
        stream=True,
        worker="llama-0",
        upstream_request_id="req-1-a",
        attempts=2,
        retries=[RetryReason.CONNECT],
        duration_s=1.5,
        ttft_s=0.25,
        tpot_s=0.0125,
        prompt_tokens=10,
        cached_tokens=0,
        output_tokens=20,
        finish_reasons=("stop",),
        events=21,
        bytes_in=100,
        bytes_out=5000,
        policy="least_loaded",
        decision="tie",
        stages={Stage.ROUTING: 0.00001234},
    )

    EventLog(lines.append, clock).request(finished)

    written = json.loads(lines[0])
    del written["time"]
    assert {
        "level": "info",
        "event": "request",
        "request_id": "req-1",
        "upstream_request_id": "req-1-a",
        "endpoint": "/v1/chat/completions",
        "model": "llama",
        "tenant": "ci",
        "worker": "llama-0",
        "outcome": "ok",
        "status": 200,
        "stream": True,
        "attempts": 2,
        "retries": ["connect"],
        "policy": "least_loaded",
        "decision": "tie",
        "duration_ms": 1500.0,
        "ttft_ms": 250.0,
        "tpot_ms": 12.5,
        "routing_ms": 0.012,
        "prompt_tokens": 10,
        "cached_tokens": 0,
        "output_tokens": 20,
        "finish_reasons": ["stop"],
        "events": 21,
        "bytes_in": 100,
        "bytes_out": 5000,
    } == written


def test_what_was_never_reached_is_left_out() -> None:
    """A refused request has no worker, tokens or first token; a status of None says that nothing was sent."""
    fields = request_fields(record(outcome=Outcome.CLIENT_CLOSED, status=None, disconnect=Phase.QUEUED))

    always = {"request_id", "endpoint", "model", "outcome", "status", "stream", "bytes_in", "bytes_out"}
    assert always | {"tenant", "disconnect"} == set(fields)


@pytest.mark.parametrize("outcome", Outcome)
def test_our_faults_are_warnings_and_clients_are_not(lines: list[bytes], clock: FakeClock, outcome: Outcome) -> None:
    """So that a filter by level shows what an operator can mend."""
    EventLog(lines.append, clock).request(record(outcome=outcome))

    quiet = outcome in (Outcome.OK, Outcome.CLIENT_ERROR, Outcome.CLIENT_CLOSED, Outcome.REJECTED)
    assert ("info" if quiet else "warning") == json.loads(lines[0])["level"]


def test_structlog_s_global_configuration_is_not_touched(lines: list[bytes], clock: FakeClock) -> None:
    """Two logs in one process, and whatever the embedding program configures, stay apart."""
    EventLog(lines.append, clock).event("one")

    assert not structlog.is_configured()


def test_auto_is_json_unless_on_a_terminal(clock: FakeClock) -> None:
    """A file is no terminal."""

    class Terminal(io.BytesIO):
        def isatty(self) -> bool:
            return True

    file, terminal = io.BytesIO(), Terminal()
    for each in (file, terminal):
        log = EventLog.to_file(each, clock)
        log.event("one")
        log.close()

    assert file.getvalue().startswith(b"{")
    assert terminal.getvalue().startswith(b"2025-")


def test_a_full_disk_or_a_closed_file_costs_lines_not_requests(clock: FakeClock) -> None:
    """The log never raises into the request path, and says how many lines were lost."""

    class Full(io.BytesIO):
        def write(self, line: object) -> int:
            raise OSError(28, "No space left on device")

    closed = io.BytesIO()
    log, full = EventLog.to_file(closed, clock), EventLog.to_file(Full(), clock, "json")
    closed.close()

    log.event("one")
    full.request(record())
    full.request(record())
    for each in (log, full):
        each.close()

    assert (1, 2) == (log.dropped, full.dropped)


def test_the_request_line_for_people_says_what_matters(lines: list[bytes], clock: FakeClock) -> None:
    """One sentence, with the id to look for elsewhere."""
    finished = record(
        worker="llama-0", duration_s=1.5, ttft_s=0.25, tpot_s=0.0125, prompt_tokens=10, output_tokens=20, tenant="ci"
    )
    failed = record(
        outcome=Outcome.UPSTREAM_ERROR,
        status=502,
        duration_s=0.002,
        retries=[RetryReason.CONNECT],
        error_code="upstream_error",
        detail="llama-0: lost\nits way\x1b[2J",
        model="",
        tenant="",
    )
    log = EventLog(lines.append, clock, "text")
    for each in (finished, failed):
        log.request(each)

    assert [
        b"2025-11-29T18:45:13.908Z info    200 ok /v1/chat/completions llama on llama-0 in 1.50 s; first token 250 ms; "
        b"12.5 ms per token; tokens 10 in, 20 out; for ci  request_id=req-1\n",
        b"2025-11-29T18:45:13.908Z warning 502 upstream_error /v1/chat/completions (no model) in 2 ms; tried again "
        b"after connect; upstream_error; llama-0: lost\\nits way\\x1b[2J  request_id=req-1\n",
    ] == lines


@pytest.mark.parametrize("style", ["json", "text"])
def test_bodies_are_in_the_line_only_where_the_relay_gave_them(
    style: Any, lines: list[bytes], clock: FakeClock
) -> None:
    """Whatever bytes they are, the line stays one line."""
    log = EventLog(lines.append, clock, style)
    log.request(record())
    log.request(record(body=b'{"prompt":"a\nsecret\xff"}'))

    assert b"secret" not in lines[0]
    assert b"secret" in lines[1]
    assert [1, 1] == [line.count(b"\n") for line in lines]
    if style == "json":
        assert '{"prompt":"a\nsecret�"}' == json.loads(lines[1])["body"]


def test_every_field_of_the_line_is_documented_and_no_other() -> None:
    """docs/logs.md has each field of the fullest line that there can be."""
    names = ("duration_s", "ttft_s", "tpot_s", "tokens_s", "body_s", "first_byte_s", "started_at_s")
    counts = ("prompt_tokens", "cached_tokens", "output_tokens", "events", "bytes_in", "bytes_out", "token_events")
    words = ("request_id", "model", "tenant", "worker", "upstream_request_id", "policy", "decision", "error_code")
    values: dict[str, Any] = {
        **dict.fromkeys(names, 1.0),
        **dict.fromkeys((*counts, "attempts"), 1),
        **dict.fromkeys((*words, "detail", "rejection"), "x"),
        "endpoint": Endpoint.CHAT_COMPLETIONS,
        "family": Family.CHAT,
        "stream": True,
        "status": 200,
        "outcome": Outcome.OK,
        "finish_reasons": ("stop",),
        "output_tokens_estimated": True,
        "stages": dict.fromkeys(Stage, 0.1),
        "disconnect": Phase.BODY,
        "body": b"{}",
        "retries": [RetryReason.CONNECT],
    }
    fullest = ExchangeRecord(**values)
    assert {name for name in dir(fullest) if not name.startswith("_")} == values.keys()
    page = (Path(__file__).parents[2] / "docs" / "logs.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]

    assert set(request_fields(fullest)) == {name for row in rows for name in re.findall(r"`(\w+)`", row)} | {
        "token_events"
    }


def test_every_stage_has_its_field() -> None:
    """What was spent in each is in the line, to the microsecond."""
    spent = {stage: (number + 1) / 1000 for number, stage in enumerate(Stage)}

    fields = request_fields(record(stages=spent))

    assert {f"{stage}_ms": seconds * 1000 for stage, seconds in spent.items()} == {
        f"{stage}_ms": fields[f"{stage}_ms"] for stage in Stage
    }


def test_an_estimated_count_of_tokens_is_marked(clock: FakeClock) -> None:
    """And a stream's token-bearing events are told with the time between the first and the last."""
    fields = request_fields(
        record(
            output_tokens=3, output_tokens_estimated=True, token_events=3, tokens_s=0.25, body_s=0.5, first_byte_s=0.125
        )
    )

    assert (True, 3, 250.0) == (fields["output_tokens_estimated"], fields["token_events"], fields["tokens_ms"])
    assert (500.0, 125.0) == (fields["body_ms"], fields["first_byte_ms"])
