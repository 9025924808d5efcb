"""One request against the fault server: every way it can end is classified, timed and booked once."""

from __future__ import annotations

import asyncio
import time

import anyio.to_thread
import pytest

from loadtest.call import Call
from loadtest.http_client import Client
from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome
from loadtest.scenarios.base import Request
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.http1 import EVENT_STREAM, response_head
from loadtest.servers.steps import Fin, Gate, Reset, Script, Send, Stall
from loadtest.stalls import StallGuard
from loadtest.target import parse_target

pytestmark = pytest.mark.anyio

CHAT = frames.ChatStream()
EVENTS = CHAT.events(["a", "b"])
STREAM = Request("/v1/chat/completions", b'{"stream":true}', True, "chat")
WHOLE = Request("/v1/chat/completions", b"{}", False, "chat")
EMBEDDINGS = Request("/v1/embeddings", b"{}", False, "embeddings", family="embeddings")
CLOSING = response_head(200, (*EVENT_STREAM, ("connection", "close")))
END = [CHAT.finish(), CHAT.usage(22, 2), frames.DONE]


async def ask(server: FaultServer, client: Client, ledger: Ledger, request: Request = STREAM) -> RequestRecord:
    """One request in a thread, as a user would make it."""
    ledger.schedule()
    now = time.perf_counter()
    call = Call(request, ledger, now, now)
    return await anyio.to_thread.run_sync(call.perform, client, parse_target(server.url), None)


def client_for(server: FaultServer, guard: StallGuard | None = None) -> Client:
    return Client(parse_target(server.url), connect_timeout_s=5, read_timeout_s=0.3, guard=guard)


def crlf(events: list[bytes]) -> list[bytes]:
    return [event.replace(b"\n", b"\r\n") for event in events]


SMILE = CHAT.content("안녕 😀")
TOKENS_AT_ONCE = CHAT.content("a b c d", usage=frames.usage_info(22, 4))
DATA_ONLY = [b'data:{"choices":[{"delta":{"content":"x"}}]}\n\n', b"data:[DONE]\n\n"]

PITFALLS: dict[str, tuple[Script, Outcome, int]] = {
    # name: script, outcome, token-bearing events
    "plain": (scripts.stream(EVENTS), Outcome.OK, 2),
    "role chunk early": (scripts.stream([CHAT.role(), *EVENTS[1:]]), Outcome.OK, 2),
    "empty deltas": (scripts.stream([CHAT.role(), CHAT.content(""), CHAT.content("a"), *END]), Outcome.OK, 1),
    "reasoning": (scripts.stream([CHAT.reasoning("hm"), CHAT.content("a"), *END]), Outcome.OK, 2),
    "tool call": (scripts.stream([CHAT.tool_call("", name="f"), CHAT.tool_call("{}"), *END]), Outcome.OK, 2),
    "usage in every event": (scripts.stream([TOKENS_AT_ONCE, CHAT.usage(22, 4), frames.DONE]), Outcome.OK, 1),
    "comments": (scripts.stream([frames.KEEP_ALIVE, EVENTS[0], frames.KEEP_ALIVE, *EVENTS[1:]]), Outcome.OK, 2),
    "CRLF": (scripts.stream(crlf(EVENTS)), Outcome.OK, 2),
    "CRLF cut everywhere": (scripts.stream(crlf(EVENTS), cut_every=1), Outcome.OK, 2),
    "UTF-8 cut everywhere": (scripts.stream([SMILE, *END], cut_every=1), Outcome.OK, 1),
    "several events in one chunk": (scripts.stream([b"".join(EVENTS)]), Outcome.OK, 2),
    "event names and ids": (scripts.stream([b"event: x\nid: 1\nretry: 5\n" + EVENTS[1], *END]), Outcome.OK, 1),
    "data without a space": (scripts.stream(DATA_ONLY), Outcome.OK, 1),
    "no usage": (scripts.chat_stream(["a", "b"], usage=False), Outcome.OK, 2),
    "connection: close without framing": (scripts.raw(CLOSING + b"".join(EVENTS), Fin()), Outcome.OK, 2),
    "body not ended after [DONE]": (scripts.stream(EVENTS, end=Stall()), Outcome.OK, 2),
    "100 Continue before": ((Send(b"HTTP/1.1 100 Continue\r\n\r\n"), *scripts.stream(EVENTS)), Outcome.OK, 2),
    "status with JSON": (scripts.ERRORS["busy"], Outcome.HTTP_STATUS, 0),
    "status with HTML": (scripts.ERRORS["bad-gateway-html"], Outcome.HTTP_STATUS, 0),
    "status with nothing": (scripts.ERRORS["empty-500"], Outcome.HTTP_STATUS, 0),
    "in-band error": (scripts.in_band_error(EVENTS[:2]), Outcome.IN_BAND_ERROR, 1),
    "in-band error first": (scripts.in_band_error([]), Outcome.IN_BAND_ERROR, 0),
    "flat in-band error": (
        scripts.stream([EVENTS[1], frames.flat_error_event(), frames.DONE]),
        Outcome.IN_BAND_ERROR,
        1,
    ),
    "in-band error, then reset": (
        scripts.stream([*EVENTS[:2], frames.error_event()], end=Reset()),
        Outcome.IN_BAND_ERROR,
        1,
    ),
    "clean end without [DONE]": (scripts.clean_truncation(EVENTS[:2]), Outcome.TRUNCATED, 1),
    "finish, but no [DONE]": (scripts.clean_truncation(EVENTS[:-1]), Outcome.TRUNCATED, 2),
    "body cut": (scripts.truncated(EVENTS[:2], Fin()), Outcome.TRUNCATED, 1),
    "connection: close, cut": (scripts.raw(CLOSING + b"".join(EVENTS[:2]), Fin()), Outcome.TRUNCATED, 1),
    "closed without a byte": (scripts.closes_at_once(), Outcome.TRUNCATED, 0),
    "reset in the middle": (scripts.truncated(EVENTS[:2], Reset()), Outcome.RESET, 1),
    "reset at once": (scripts.resets_at_once(), Outcome.RESET, 0),
    "stall": (scripts.truncated(EVENTS[:2], Stall()), Outcome.TIMEOUT, 1),
    "no answer": (scripts.never_answers(), Outcome.TIMEOUT, 0),
    "tokenless": (scripts.stream([CHAT.role(), CHAT.finish(), CHAT.usage(5, 0), frames.DONE]), Outcome.TOKENLESS, 0),
    "aborted": (scripts.chat_stream(["a"], finish="abort"), Outcome.ABORTED, 1),
    "not HTTP": (scripts.raw(b"SSH-2.0-x\r\n\r\n", Fin()), Outcome.MALFORMED, 0),
    "not JSON": (scripts.stream([EVENTS[1], b"data: <html>\n\n", frames.DONE]), Outcome.MALFORMED, 1),
}


@pytest.mark.parametrize("guarded", [False, True], ids=["timeouts", "guard"])
@pytest.mark.parametrize("name", PITFALLS)
async def test_every_pitfall_is_classified_and_booked_once(name: str, guarded: bool) -> None:
    """scheduled = ok + failed + unsent, whatever the server does, with a timer per read or one guard for all."""
    script, expected, events = PITFALLS[name]
    ledger = Ledger()
    async with asyncio.timeout(20), FaultServer(script) as server:
        with StallGuard(0.3) as guard:
            client = client_for(server, guard if guarded else None)
            record = await ask(server, client, ledger)
            client.close()

    assert (expected, events) == (record.outcome, record.token_events), record.detail
    assert ledger.balanced
    assert (0, int(expected is Outcome.OK), int(expected is not Outcome.OK)) == (
        ledger.in_flight,
        ledger.ok,
        ledger.failed,
    )
    assert max(0, events - 1) == len(record.gaps_s)
    assert (events > 0) is (record.ttft_s is not None)
    assert ledger.durations.e2e.count == ledger.ok, "failures never enter the durations"


async def test_a_failure_keeps_what_the_server_said() -> None:
    """The message out of the error's envelope, of a body that has none the body."""
    ledger = Ledger()
    async with asyncio.timeout(20), FaultServer(*(scripts.ERRORS[n] for n in ("busy", "bad-gateway-html"))) as server:
        client = client_for(server)
        details = [(await ask(server, client, ledger)).detail for _ in range(2)]
        client.close()

    assert details == [f"HTTP 503: 503: {frames.BUSY}", "HTTP 502: <html>502</html>"]
    assert dict(ledger.failures) == {"http_503": 1, "http_502": 1}


async def test_a_refused_connection_is_a_failure_that_was_never_sent() -> None:
    """Classified as connect, without a moment of sending."""
    ledger = Ledger()
    async with asyncio.timeout(20), FaultServer(refuse=True) as server:
        record = await ask(server, client_for(server), ledger)

    assert (record.outcome, record.sent_s, ledger.failed) == (Outcome.CONNECT, None, 1)


async def test_usage_and_figures_come_from_the_server() -> None:
    """Tokens from usage, events from the stream, the request body unchanged, the scenario's headers beside it."""
    ledger = Ledger()
    request = Request(*("/v1/chat/completions", b'{"stream":true}', True, "turn"), headers=(("x-a", "b"),), api_key="k")
    async with asyncio.timeout(20), FaultServer(scripts.chat_stream(["a", "b", "c"])) as server:
        client = client_for(server)
        record = await ask(server, client, ledger, request)
        client.close()
        received = await server.request(0)

    assert (record.prompt_tokens, record.output_tokens, record.token_events, len(record.gaps_s)) == (22, 3, 3, 2)
    assert (record.kind, record.finish_reason, record.connect_s is not None) == ("turn", "stop", True)
    assert (received.body, received.path) == (b'{"stream":true}', "/v1/chat/completions")
    assert [received.header(n) for n in ("content-type", "x-a", "authorization")] == [
        "application/json",
        "b",
        "Bearer k",
    ]


@pytest.mark.parametrize(
    ("expected", "request_", "script"),
    [
        (Outcome.OK, WHOLE, scripts.chat_json("Paris.")),
        (Outcome.OK, EMBEDDINGS, scripts.embeddings_json()),
        (Outcome.TOKENLESS, EMBEDDINGS, scripts.answer(200, {"data": []})),
        (Outcome.TOKENLESS, WHOLE, scripts.answer(200, {"choices": []})),
        (Outcome.IN_BAND_ERROR, WHOLE, scripts.answer(200, {"error": {"message": "no"}})),
        (Outcome.MALFORMED, WHOLE, scripts.answer(200, b"<html>")),
        (Outcome.ABORTED, WHOLE, scripts.answer(200, frames.chat_body("x", finish="abort"))),
        (Outcome.HTTP_STATUS, EMBEDDINGS, scripts.ERRORS["busy"]),
        (Outcome.TRUNCATED, WHOLE, scripts.raw(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{}", Fin())),
    ],
)
async def test_answers_that_are_no_streams(expected: Outcome, request_: Request, script: Script) -> None:
    """Whole JSON answers have usage and an end, and no first token."""
    ledger = Ledger()
    async with asyncio.timeout(20), FaultServer(script) as server:
        client = client_for(server)
        record = await ask(server, client, ledger, request_)
        client.close()

    assert record.outcome is expected, record.detail
    assert (record.ttft_s, record.token_events) == (None, 0)
    assert (expected is Outcome.OK) is (record.prompt_tokens is not None and record.e2e_s is not None) or (
        expected is Outcome.ABORTED
    )


@pytest.mark.parametrize("leaving", [{"cancel_after_events": 1}, {"cancel_after_s": 0.2}])
async def test_a_client_that_leaves_on_purpose_is_no_failure_and_closes_its_connection(
    leaving: dict[str, float],
) -> None:
    """After an event, or after a time in which nothing came; the partial answer stays in the record."""
    ledger = Ledger()
    request = Request(*("/v1/chat/completions", b"{}", True, "leaves"), **leaving)  # type: ignore[arg-type]
    async with asyncio.timeout(20), FaultServer(scripts.truncated(EVENTS[:2], Stall())) as server:
        client = client_for(server)
        record = await ask(server, client, ledger, request)
        await server.idle()

    assert (record.outcome, record.token_events) == (Outcome.CANCELLED, 1)
    assert (ledger.cancelled, ledger.failed, ledger.ok, ledger.balanced) == (1, 0, 0, True)
    assert ledger.durations.ttft.count == 0


async def test_an_answer_that_ends_before_its_client_wanted_to_leave_is_an_ordinary_one() -> None:
    """As the scenario's contract says."""
    ledger = Ledger()
    request = Request(*("/v1/chat/completions", b"{}", True, "leaves"), cancel_after_events=9, cancel_after_s=60)
    async with asyncio.timeout(20), FaultServer(scripts.stream(EVENTS)) as server:
        client = client_for(server)
        record = await ask(server, client, ledger, request)
        client.close()

    assert record.outcome is Outcome.OK, record.detail


async def test_ttft_waits_for_the_token_and_not_for_the_role() -> None:
    """The role event is out long before; the token leaves only when the test opens the gate."""
    ledger = Ledger()
    script = scripts.stream([CHAT.role(), Gate("token"), *EVENTS[1:]])
    async with asyncio.timeout(20), FaultServer(script) as server:
        client = Client(parse_target(server.url))
        asking = asyncio.create_task(ask(server, client, ledger))
        await server.reached("token")
        reached = time.perf_counter()
        await asyncio.sleep(0.05)
        held = time.perf_counter() - reached
        server.release("token")
        record = await asking
        client.close()

    assert record.ttft_s is not None
    assert record.ttft_s >= held


async def test_a_connection_is_kept_and_replaced_only_when_the_server_closed_it() -> None:
    """Two answers per connection: three requests need two connections, none fails, none is sent twice."""
    ledger = Ledger()
    async with asyncio.timeout(20), FaultServer(scripts.stream(EVENTS), close_after=2) as server:
        client = client_for(server)
        records = [await ask(server, client, ledger) for _ in range(2)]
        await server.until(lambda: server.connections[0].requests[1].answered.is_set())
        records.append(await ask(server, client, ledger))
        client.close()

    assert [record.outcome for record in records] == [Outcome.OK] * 3
    assert [len(c.requests) for c in server.connections] == [2, 1]
    assert [record.connect_s is not None for record in records] == [True, False, True]


def test_an_interrupted_request_is_unsent_or_cut() -> None:
    """The end of a run loses no request: not sent yet is unsent, sent is a failure of its own class."""
    ledger = Ledger()
    ledger.schedule()
    Call(STREAM, ledger, 0.0, 0.0).interrupted()
    ledger.schedule()
    sent = Call(STREAM, ledger, 0.0, 0.0)
    sent.exchange.sent = True
    sent.interrupted()

    assert (ledger.unsent, dict(ledger.failures)) == (1, {"cut_at_end": 1})
    assert (ledger.balanced, ledger.in_flight) == (True, 0)
