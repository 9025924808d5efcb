"""One request against the fault server: every way it can end is classified, timed and booked once."""

from __future__ import annotations

import asyncio
import time

import anyio.to_thread
import pytest

from loadtest.chat import ChatCall
from loadtest.http_client import Client
from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome
from loadtest.servers import frames, scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.steps import Fin, Gate, Reset, Script, Send, Stall
from loadtest.target import parse_target

pytestmark = pytest.mark.anyio

CHAT = frames.ChatStream()
EVENTS = CHAT.events(["a", "b"])


async def ask(server: FaultServer, client: Client, ledger: Ledger) -> RequestRecord:
    """One request in a thread, as a user would make it."""
    ledger.schedule()
    call = ChatCall(ledger, time.perf_counter())
    target = parse_target(server.url)
    return await anyio.to_thread.run_sync(call.perform, client, target, b'{"stream":true}', None)


def client_for(server: FaultServer) -> Client:
    return Client(parse_target(server.url), connect_timeout_s=5, read_timeout_s=0.3)


@pytest.mark.parametrize(
    ("expected", "script"),
    [
        (Outcome.OK, scripts.stream(EVENTS)),
        (Outcome.OK, scripts.stream(EVENTS, cut_every=1)),
        (Outcome.OK, scripts.stream([e.replace(b"\n", b"\r\n") for e in EVENTS])),
        (Outcome.OK, scripts.stream([frames.KEEP_ALIVE, *EVENTS])),
        (Outcome.OK, scripts.stream(EVENTS, end=Stall())),
        (Outcome.OK, scripts.stream([b"".join(EVENTS)])),
        (Outcome.HTTP_STATUS, scripts.ERRORS["busy"]),
        (Outcome.HTTP_STATUS, scripts.ERRORS["bad-gateway-html"]),
        (Outcome.HTTP_STATUS, scripts.ERRORS["empty-500"]),
        (Outcome.IN_BAND_ERROR, scripts.in_band_error(EVENTS[:2])),
        (Outcome.IN_BAND_ERROR, scripts.stream([*EVENTS[:2], frames.error_event()], end=Reset())),
        (Outcome.TRUNCATED, scripts.clean_truncation(EVENTS[:2])),
        (Outcome.TRUNCATED, scripts.truncated(EVENTS[:2], Fin())),
        (Outcome.TRUNCATED, scripts.closes_at_once()),
        (Outcome.RESET, scripts.truncated(EVENTS[:2], Reset())),
        (Outcome.RESET, scripts.resets_at_once()),
        (Outcome.TIMEOUT, scripts.truncated(EVENTS[:2], Stall())),
        (Outcome.TIMEOUT, scripts.never_answers()),
        (Outcome.TOKENLESS, scripts.stream([CHAT.role(), CHAT.finish(), CHAT.usage(5, 0), frames.DONE])),
        (Outcome.ABORTED, scripts.chat_stream(["a"], finish="abort")),
        (Outcome.MALFORMED, scripts.raw(b"SSH-2.0-x\r\n\r\n", Fin())),
        (Outcome.MALFORMED, scripts.stream([EVENTS[0], b"data: <html>\n\n", frames.DONE])),
    ],
)
async def test_every_ending_is_classified_and_booked_once(expected: Outcome, script: Script) -> None:
    """scheduled = ok + failed + unsent, whatever the server does."""
    ledger = Ledger()
    async with asyncio.timeout(20), FaultServer(script) as server:
        client = client_for(server)
        record = await ask(server, client, ledger)
        client.close()

    assert record.outcome is expected, record.detail
    assert ledger.balanced
    assert (ledger.in_flight, ledger.ok, ledger.failed) == (
        0,
        int(expected is Outcome.OK),
        int(expected is not Outcome.OK),
    )
    assert ledger.durations.e2e.count == ledger.ok, "failures never enter the durations"


async def test_a_refused_connection_is_a_failure_that_was_never_sent() -> None:
    """Classified as connect, without a moment of sending."""
    ledger = Ledger()
    async with asyncio.timeout(20), FaultServer(refuse=True) as server:
        record = await ask(server, client_for(server), ledger)

    assert (record.outcome, record.sent_s, ledger.failed) == (Outcome.CONNECT, None, 1)


async def test_usage_and_figures_come_from_the_server() -> None:
    """Tokens from usage, events from the stream, the request body unchanged."""
    ledger = Ledger()
    async with asyncio.timeout(20), FaultServer(scripts.chat_stream(["a", "b", "c"])) as server:
        client = client_for(server)
        record = await ask(server, client, ledger)
        client.close()
        request = await server.request(0)

    assert (record.prompt_tokens, record.output_tokens, record.token_events, len(record.gaps_s)) == (22, 3, 3, 2)
    assert request.body == b'{"stream":true}'
    assert request.path == "/v1/chat/completions"
    assert request.header("content-type") == "application/json"


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
        outcomes = [(await ask(server, client, ledger)).outcome for _ in range(2)]
        await server.until(lambda: server.connections[0].requests[1].answered.is_set())
        outcomes.append((await ask(server, client, ledger)).outcome)
        client.close()

    assert outcomes == [Outcome.OK] * 3
    assert [len(c.requests) for c in server.connections] == [2, 1]


async def test_an_interim_response_is_not_the_answer() -> None:
    """100 Continue before the real head."""
    ledger = Ledger()
    script = (Send(b"HTTP/1.1 100 Continue\r\n\r\n"), *scripts.stream(EVENTS))
    async with asyncio.timeout(20), FaultServer(script) as server:
        client = client_for(server)
        record = await ask(server, client, ledger)
        client.close()

    assert record.outcome is Outcome.OK, record.detail


def test_an_interrupted_request_is_unsent_or_cut() -> None:
    """The end of a run loses no request: not sent yet is unsent, sent is a failure of its own class."""
    ledger = Ledger()
    ledger.schedule()
    ChatCall(ledger, 0.0).interrupted()
    ledger.schedule()
    sent = ChatCall(ledger, 0.0)
    sent.exchange.sent = True
    sent.interrupted()

    assert (ledger.unsent, dict(ledger.failures)) == (1, {"cut_at_end": 1})
    assert ledger.balanced
    assert ledger.in_flight == 0
