"""Second attempts: only where nothing was done yet, counted, bounded, and said to clients that retry themselves."""

from __future__ import annotations

import openai
import pytest

from gateway.proxy.policy import ModelPolicy
from gateway.types import Outcome
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.corpus.expectations import EVENTS, error_object, sdk
from tests.corpus.relayed import Relay
from tests.proxy.raw_client import CHAT, Answer, ask, chat, post
from tests.proxy.served import model_policy

pytestmark = pytest.mark.anyio

USER = [{"role": "user", "content": "hi"}]
DATE = "Sun, 29 Nov 2026 19:00:{second:02d} GMT"


def pause_s(answer: Answer) -> float:
    """The pause that SDKs take: milliseconds where given, else seconds; one header of each kind at most."""
    milliseconds, seconds = answer.all("retry-after-ms"), answer.all("retry-after")
    assert len(milliseconds) <= 1
    assert len(seconds) <= 1
    return int(milliseconds[0]) / 1000 if milliseconds else float(seconds[0])


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
@pytest.mark.parametrize(
    ("headers", "pauses"),
    [
        ((("retry-after", "7"),), (7,)),
        ((("retry-after-ms", "6500"),), (6.5, 7)),
        ((("retry-after", "7"), ("retry-after-ms", "6500")), (6.5, 7)),
        ((("date", DATE.format(second=10)), ("retry-after", DATE.format(second=17))), (7,)),
        ((("retry-after", "86400"),), (60,)),
        ((("retry-after-ms", "86400000"),), (60,)),
    ],
    ids=["seconds", "milliseconds", "both", "date", "a-day", "a-day-in-milliseconds"],
)
async def test_c34_a_workers_pause_reaches_the_client(
    relay: Relay, headers: tuple[tuple[str, str], ...], pauses: tuple[float, ...], stream: bool
) -> None:
    """Whichever way the worker put it, SDKs pause as long as it asked, up to the minute that all of them accept."""
    script = scripts.error(429, "slow down", "rate_limit_error", None, headers)
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, chat(stream=stream)))

        assert 429 == answer.status
        assert pause_s(answer) in pauses
        assert 1 == len(worker.requests)


async def test_c34_limits_and_retry_advice_reach_the_client(relay: Relay) -> None:
    """What is left of a quota, and whether to try again at all, under the names that SDKs read."""
    headers = (
        ("x-ratelimit-remaining-requests", "0"),
        ("x-ratelimit-reset-requests", "6m0s"),
        ("x-should-retry", "false"),
    )
    script = scripts.error(429, "out of quota", "insufficient_quota", None, headers)
    async with FaultServer(script) as worker, relay(worker) as gate, sdk(gate.port, max_retries=2) as client:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert ["0"] == answer.all("x-ratelimit-remaining-requests")
        assert ["6m0s"] == answer.all("x-ratelimit-reset-requests")
        assert ["false"] == answer.all("x-should-retry")
        with pytest.raises(openai.RateLimitError):
            await client.chat.completions.create(model="sim", messages=USER, stream=True)
        assert 2 == len(worker.requests)


@pytest.mark.parametrize("limit", ["first_byte_s", "first_token_s"])
async def test_c43_a_request_that_was_accepted_is_not_sent_again(relay: Relay, limit: str) -> None:
    """The worker has the whole request and says nothing: it may be generating, so the time limit ends it, with 504."""
    async with (
        FaultServer(scripts.never_answers()) as silent,
        FaultServer(scripts.never_answers()) as other,
        relay(silent, other, policy=model_policy(**{limit: 0.2})) as gate,
    ):
        answer = await ask(gate.port, post(CHAT, chat()))

        assert 504 == answer.status
        assert "upstream_timeout" == error_object(answer.body)["code"]
        assert 1 == len(silent.requests) + len(other.requests)
        await (silent.requests + other.requests)[0].closed.wait()
        record = await gate.ended(Outcome.UPSTREAM_TIMEOUT)
        assert record is None or record.attempts == 1


@pytest.mark.parametrize("status", [400, 404, 409, 413, 422, 429])
async def test_c43_a_clients_fault_is_tried_once(relay: Relay, status: int) -> None:
    """The next worker would say the same; and no worker is to blame."""
    script = scripts.error(status, "no", "BadRequestError")
    async with FaultServer(script) as one, FaultServer(script) as two, relay(one, two) as gate:
        answer = await ask(gate.port, post(CHAT, chat()))

        assert status == answer.status
        assert error_object(answer.body)
        assert 1 == len(one.requests) + len(two.requests)
        assert [] == gate.blamed()
        record = await gate.ended(Outcome.CLIENT_ERROR)
        assert record is None or record.attempts == 1


@pytest.mark.parametrize("name", ["busy", "draining", "bad-gateway-html"])
async def test_c43_a_worker_that_says_no_is_passed_over(relay: Relay, name: str) -> None:
    """Its own word that nothing was done: another worker gets the request, counted in the record."""
    async with (
        FaultServer(scripts.ERRORS[name]) as no,
        FaultServer(scripts.stream(EVENTS)) as yes,
        relay(no, yes) as gate,
    ):
        answer = await ask(gate.port, post(CHAT, chat()))

        assert (200, b"".join(EVENTS)) == (answer.status, answer.body)
        assert 1 == len(no.requests) == len(yes.requests)
        record = await gate.ended(Outcome.OK)
        assert record is None or record.attempts == 2


async def test_c43_a_lost_connection_is_tried_elsewhere_once(relay: Relay) -> None:
    """Refused connections cost nothing but time; the request is executed exactly once."""
    async with (
        FaultServer(refuse=True) as down,
        FaultServer(scripts.stream(EVENTS)) as well,
        relay(down, well) as gate,
    ):
        answer = await ask(gate.port, post(CHAT, chat()))

        assert (200, b"".join(EVENTS)) == (answer.status, answer.body)
        assert 1 == len(well.requests)


async def test_c44_retries_do_not_multiply(relay: Relay) -> None:
    """Every worker busy: after its own attempts the gateway tells the SDK when, or that it need not, try again."""
    async with (
        FaultServer(scripts.ERRORS["busy"]) as one,
        FaultServer(scripts.ERRORS["busy"]) as two,
        FaultServer(scripts.ERRORS["busy"]) as three,
        relay(one, two, three, policy=ModelPolicy(retries=1)) as gate,
    ):
        answer = await ask(gate.port, post(CHAT, chat()))
        assert 503 == answer.status
        assert ["false"] == answer.all("x-should-retry") or answer.all("retry-after")
        assert 2 == len(one.requests) + len(two.requests) + len(three.requests)


async def test_c44_the_sdk_and_the_gateway_together(relay: Relay) -> None:
    """At most the gateway's attempts times the SDK's reach the workers."""
    async with (
        FaultServer(scripts.ERRORS["busy"]) as one,
        FaultServer(scripts.ERRORS["busy"]) as two,
        relay(one, two, policy=ModelPolicy(retries=1)) as gate,
        sdk(gate.port, max_retries=1) as client,
    ):
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model="sim", messages=USER)

        assert len(one.requests) + len(two.requests) <= 2 * 2
