"""Request bodies: what the client wrote reaches the worker byte for byte, but for the rewrites that have a name."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence

import pytest

from gateway.proxy.policy import ModelPolicy
from gateway.types import Outcome
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from loadtest.servers.recording import RecordedRequest
from loadtest.servers.steps import Script
from tests.corpus.envelopes import error_of
from tests.corpus.relayed import Relay
from tests.corpus.specimens import json_string, json_text
from tests.proxy.raw_client import CHAT, Answer, ask, connect, post

pytestmark = pytest.mark.anyio

COMPLETIONS = "/v1/completions"
RESPONSES = "/v1/responses"
MESSAGES = "/v1/messages"
FORCED = b'"stream_options":{"include_usage":true},'
"""The only change to a streamed request that did not ask for usage: this, behind the opening brace."""


def answer_for(request: RecordedRequest) -> Script:
    """A small good answer, streamed or not as asked."""
    if b'"stream":true' in request.body.replace(b" ", b""):
        return scripts.chat_stream()
    return scripts.chat_json()


async def ask_each(port: int, bodies: Iterable[bytes], path: str = CHAT) -> list[Answer]:
    """Requests one after the other on one connection."""
    async with connect(port) as client:
        answers = []
        for body in bodies:
            client.send(post(path, body))
            answers.append(await client.answer())
        return answers


async def passes_unchanged(relay: Relay, bodies: Sequence[bytes], path: str = CHAT) -> None:
    """Every body arrives as it was sent, with its own length, and is answered."""
    async with FaultServer(answer_for) as worker, relay(worker) as gate:
        answers = await ask_each(gate.port, bodies, path)

        assert list(bodies) == [request.body for request in worker.requests]
        assert [str(len(body)) for body in bodies] == [request.header("content-length") for request in worker.requests]
        assert [200] * len(bodies) == [answer.status for answer in answers]
        assert [path] * len(bodies) == [request.target for request in worker.requests]


UNKNOWN = (
    b'{"model":"sim","messages":[],"chat_template_kwargs":{"enable_thinking":false},"structured_outputs":{"regex":"a+"},'
    b'"guided_json":{"type":"object"},"top_k":5,"min_p":0.1,"x_future":{"a":[1,null]}}'
)
EVERYWHERE = (
    b'{ "x_first" : null , "model":"sim",\n\t"messages":[{"role":"user","x_m":{"model":"other","stream":true},'
    b'"content":[{"type":"text","text":"\\u00e9\\/\\ud83d\\ude00 \xc3\xa9","x_part":[{}]}]}],"tools":[{"x_t":1,'
    b'"type":"function","function":{"name":"f","x_f":"","parameters":{"x_p":{}}}}],"response_format":{"type":"json_object","x_r":1e0},'
    b'"stream":true,"stream_options":{"include_usage":true,"x_s":[ ]},"x_last":"}"}\r\n'
)


async def test_c49_unknown_fields_reach_the_worker(relay: Relay) -> None:
    """At the top level and inside messages, parts, tools, formats and options."""
    await passes_unchanged(relay, [UNKNOWN, EVERYWHERE])


def fuzzed(count: int, *, stream: bool) -> Iterator[bytes]:
    """Requests with random members around the known ones."""
    random_ = random.Random(49)
    for _ in range(count):
        members = [f'"x{n}": {json_text(random_)}' for n in range(random_.randrange(1, 8))]
        members += ['"model" :"sim"', f'"messages":[{{"role":"user","content":{json_string(random_)},"x":[]}}]']
        members += ['"stream":true'] if stream else []
        random_.shuffle(members)
        yield ("{" + random_.choice([",", " ,\n", ", "]).join(members) + "}").encode()


async def test_c49_random_fields_at_every_depth_reach_the_worker(relay: Relay) -> None:
    """Two hundred bodies in odd spelling: equal bytes."""
    await passes_unchanged(relay, list(fuzzed(200, stream=False)))


async def test_c49_forced_usage_is_spliced_in(relay: Relay) -> None:
    """Where the gateway asks for usage itself, that is all that is added; taking it away gives the client's bytes."""
    bodies = list(fuzzed(50, stream=True))
    async with FaultServer(answer_for) as worker, relay(worker) as gate:
        answers = await ask_each(gate.port, bodies)

        assert [True] * 50 == [FORCED in request.body for request in worker.requests]
        assert bodies == [request.body.replace(FORCED, b"", 1) for request in worker.requests]
        assert [200] * 50 == [answer.status for answer in answers]


@pytest.mark.parametrize("path", [MESSAGES, f"{MESSAGES}/count_tokens"])
async def test_c50_messages_are_passed_natively(relay: Relay, path: str) -> None:
    """Anthropic's routes keep their bodies and their own headers; the client's key stays here."""
    body = (
        b'{"model":"sim","max_tokens":8,"messages":[],"chat_template_kwargs":{"enable_thinking":false},'
        b'"thinking":{"type":"enabled","budget_tokens":1024},"metadata":{"user_id":""},"x":[{"y":null}]}'
    )
    reply = scripts.messages_json() if path == MESSAGES else scripts.answer(200, b'{ "input_tokens": 9, "x": null }')
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "a-2026-01-01,b", "x-api-key": "sk-canary"}
    async with FaultServer(reply) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(path, body, headers))

        request = worker.requests[0]
        assert (path, body) == (request.target, request.body)
        assert ("2023-06-01", "a-2026-01-01,b") == tuple(map(request.header, ("anthropic-version", "anthropic-beta")))
        assert b"sk-canary" not in request.raw
        assert 200 == answer.status
        assert answer.header("request-id")
        assert path == MESSAGES or b'{ "input_tokens": 9, "x": null }' == answer.body


FIELDS = {
    "temperature": (b"0", b"0.0"),
    "top_p": (b"0",),
    "seed": (b"0", b"-0"),
    "n": (b"0", b"1"),
    "stream": (b"false",),
    "stop": (b"[]", b'""'),
    "logit_bias": (b"{}",),
    "user": (b'""',),
    "max_tokens": (b"0",),
    "max_completion_tokens": (b"0",),
    "tools": (b"[]",),
    "parallel_tool_calls": (b"false",),
    "logprobs": (b"false", b"0"),
    "response_format": (b"{}",),
    "stream_options": (b"{}",),
}


async def test_c51_zeros_and_nulls_are_kept(relay: Relay) -> None:
    """Every field absent, null, zero and empty: nothing appears, disappears or changes."""
    bodies = [b'{"model":"sim","messages":[]}']
    for name, values in FIELDS.items():
        template = b'{"model":"sim","messages":[],"%b":%b}'
        bodies += [template % (name.encode(), value) for value in (b"null", *values)]
    bodies.append(
        b'{"model":"sim","messages":[],"temperature":0,"top_p":0,"seed":0,"n":1,"stream":false,"stop":[],'
        b'"logit_bias":{},"user":"","max_tokens":0,"tools":null,"stop":null}'
    )
    await passes_unchanged(relay, bodies)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (b"null", b'{"include_usage":true}'),
        (b"{}", b'{"include_usage":true}'),
        (b'{"include_usage":false}', b'{"include_usage":true}'),
        (b'{ "x":[0, ""],"include_usage":null }', b'{ "include_usage":true,"x":[0, ""] }'),
    ],
)
async def test_c51_stream_options_keep_what_they_had(relay: Relay, options: bytes, expected: bytes) -> None:
    """Forced usage changes one member of the options and nothing around them."""
    template = b'{"model":"sim","temperature":0,"stream_options":%b,"stream":true,"messages":[],"stop":null}'
    async with FaultServer(answer_for) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, template % options))

        before, _, after = worker.requests[0].body.partition(b'"stream_options":')
        assert b'{"model":"sim","temperature":0,' == before
        assert after.endswith(b',"stream":true,"messages":[],"stop":null}')
        sent = after.removesuffix(b',"stream":true,"messages":[],"stop":null}')
        assert json.loads(expected) == json.loads(sent)
        assert 200 == answer.status


async def test_c52_numbers_keep_their_spelling(relay: Relay) -> None:
    """Beyond 2**53 and 2**64, beyond any float, or merely unusual: as written."""
    numbers = (
        b'"seed":9007199254740993',
        b'"seed":18446744073709551616',
        b'"seed":-9223372036854775809',
        b'"seed":1e400',
        b'"temperature":1e-7',
        b'"temperature":0.30000000000000004',
        b'"temperature":1.0E+0',
        b'"logit_bias":{"50256":-100}',
        b'"seed":' + b"7" * 5000,
    )
    await passes_unchanged(relay, [b'{"model":"sim","messages":[],%b}' % number for number in numbers])


@pytest.mark.parametrize("field", ["seed", "n", "max_tokens", "max_completion_tokens", "x"])
@pytest.mark.parametrize("number", [b"7" * 100_000, b"1" + b"0" * 5000, b"1e999999", b"-1", b"0.5", b'"9" '])
async def test_c52_absurd_numbers_are_no_trouble(relay: Relay, field: str, number: bytes) -> None:
    """The gateway neither converts nor chokes on them: refused by the worker, 400 reaches the client."""

    def refuse(request: RecordedRequest) -> Script:
        assert number in request.body
        return scripts.ERRORS["bad-request"]

    body = b'{"model":"sim","messages":[],"%b":%b}' % (field.encode(), number)
    async with FaultServer(refuse) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, body))

        error_of(answer, 400)
        assert len(answer.body) < 3000
        await gate.ended(Outcome.CLIENT_ERROR)


LIMITS = [
    (CHAT, b'"max_completion_tokens":16'),
    (CHAT, b'"max_tokens":32,"max_completion_tokens":16'),
    (COMPLETIONS, b'"max_tokens":16'),
    (RESPONSES, b'"max_output_tokens":16'),
    (MESSAGES, b'"max_tokens":16'),
]


@pytest.mark.parametrize(("path", "fields"), LIMITS)
async def test_c53_token_limits_pass_untouched(relay: Relay, path: str, fields: bytes) -> None:
    """Whichever spelling a client uses, and both at once, reaches the worker."""
    await passes_unchanged(relay, [b'{"model":"sim","x":0,%b,"y":1}' % fields], path)


@pytest.mark.parametrize(
    ("path", "sent", "arrives"),
    [
        (CHAT, b'"max_completion_tokens":50', b'"max_completion_tokens":20'),
        (CHAT, b'"max_tokens":32,"max_completion_tokens":16', b'"max_tokens":20,"max_completion_tokens":16'),
        (CHAT, b'"max_tokens":20', b'"max_tokens":20'),
        (CHAT, b'"max_tokens":1e6', b'"max_tokens":20'),
        (CHAT, b'"max_tokens":' + b"9" * 400, b'"max_tokens":20'),
        (COMPLETIONS, b'"max_tokens":21', b'"max_tokens":20'),
        (RESPONSES, b'"max_output_tokens":4096', b'"max_output_tokens":20'),
        (MESSAGES, b'"max_tokens":4096', b'"max_tokens":20'),
    ],
)
async def test_c53_the_ceiling_holds_for_every_spelling(relay: Relay, path: str, sent: bytes, arrives: bytes) -> None:
    """
    A request above the operator's limit gets the limit, whichever field it is in; the rest stays as it was.

    The configuration promises this instead of a refusal: `max_tokens_limit`.
    """
    template = b'{"model":"sim","x":0,%b,"y":1}'
    policy = ModelPolicy(max_tokens_limit=20)
    async with FaultServer(answer_for) as worker, relay(worker, policy=policy) as gate:
        answer = await ask(gate.port, post(path, template % sent))

        assert template % arrives == worker.requests[0].body
        assert 200 == answer.status


async def test_c53_the_default_is_for_those_who_set_none(relay: Relay) -> None:
    """A limit of the client's own, in either field, keeps the operator's default away."""
    policy = ModelPolicy(default_max_tokens=99)
    bodies = [
        b'{"model":"sim","messages":[]}',
        b'{"model":"sim","messages":[],"max_tokens":5}',
        b'{"model":"sim","messages":[],"max_completion_tokens":7}',
    ]
    async with FaultServer(answer_for) as worker, relay(worker, policy=policy) as gate:
        await ask_each(gate.port, bodies)

        assert [99, 5, None] == [request.json().get("max_tokens") for request in worker.requests]
        assert bodies[1:] == [request.body for request in worker.requests[1:]]
