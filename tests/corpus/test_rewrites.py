"""Requests that are rewritten: alias, forced usage and stripped fields change what they name, and nothing else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from gateway.proxy.policy import ModelPolicy
from gateway.types import Outcome
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.corpus.relayed import Relay
from tests.corpus.specimens import json_string, json_text
from tests.proxy.raw_client import CHAT, ask, connect, post

pytestmark = pytest.mark.anyio

OPERATOR = ("priority", "request_id", "kv_transfer_params", "ec_transfer_params", "cache_salt")


def members(body: bytes) -> list[tuple[str, Any]]:
    """The members of an object in order, repeated keys included, every number as it is spelt."""
    found: list[tuple[str, Any]] = json.loads(
        body,
        object_pairs_hook=list,
        parse_int=lambda text: ("number", text),
        parse_float=lambda text: ("number", text),
        parse_constant=lambda text: ("number", text),
    )
    return found


def written(random_: random.Random, *, stream: bool) -> tuple[bytes, list[tuple[str, str]]]:
    """A request in odd spelling with everything in it that is rewritten, and its members as texts."""
    listed = [(f"x{number}", json_text(random_)) for number in range(random_.randrange(6))]
    listed += [(name, json_text(random_)) for name in OPERATOR if random_.random() < 0.5]
    listed += [("x1", json_text(random_)), ("model", '"alias"')]
    listed += [("messages", f'[{{"role":"user","content":{json_string(random_)},"model":"alias"}}]')]
    listed += [("stream", "true" if stream else "false")]
    if random_.random() < 0.5:
        listed.append(("stream_options", random_.choice(["null", "{}", '{ "x" : [1.50] }', '{"include_usage": true}'])))
    random_.shuffle(listed)
    between = random_.choice([",", " ,\r\n\t", ", "])
    around = random_.choice(["", " ", "\n"])
    text = between.join(f'"{name}"{around}:{around}{value}' for name, value in listed)
    return (around + "{" + around + text + around + "}" + around).encode(), listed


def expected(listed: list[tuple[str, str]]) -> list[tuple[str, Any]]:
    """The members that must arrive, found without splicing; forced usage is left to the caller."""
    kept = [(name, '"sim"' if name == "model" else value) for name, value in listed if name not in OPERATOR]
    return members(("{" + ",".join(f'"{name}":{value}' for name, value in kept) + "}").encode())


def split_options(pairs: list[tuple[str, Any]]) -> tuple[list[tuple[str, Any]], list[tuple[str, Any]]]:
    """All other members in order, and the members of `stream_options` but for the one that is forced."""
    options = [value or [] for name, value in pairs if name == "stream_options"]
    inner = [pair for value in options for pair in value if pair[0] != "include_usage"]
    return [pair for pair in pairs if pair[0] != "stream_options"], inner


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "plain"])
async def test_c49_rewrites_touch_what_they_name(relay: Relay, stream: bool) -> None:
    """A hundred random requests: alias replaced, operator's fields gone, usage asked for; all else as it was spelt."""
    random_ = random.Random(63)
    sent = [written(random_, stream=stream) for _ in range(100)]
    script = scripts.chat_stream() if stream else scripts.chat_json()
    async with FaultServer(script) as worker, relay(worker) as gate, connect(gate.port) as client:
        for body, _ in sent:
            client.send(post(CHAT, body))
            assert 200 == (await client.answer()).status, body

        for (body, listed), received in zip(sent, worker.requests, strict=True):
            arrived = members(received.body)
            if stream:
                assert split_options(expected(listed)) == split_options(arrived), body
                assert received.json()["stream_options"]["include_usage"] is True
            else:
                assert expected(listed) == arrived, body
            for name, value in listed:
                if name not in (*OPERATOR, "model", "stream_options"):
                    assert value.encode() in received.body


@pytest.mark.parametrize("passed", [True, False])
async def test_c49_operator_fields_pass_where_they_may(relay: Relay, passed: bool) -> None:
    """Byte for byte if the operator says so, otherwise as if they had never been written; inner ones always stay."""
    clean = b'{"model":"sim","messages":[{"role":"user","priority":1,"request_id":"x"}],"x":{"cache_salt":"s"}}'
    dirty = clean[:-1] + b',"priority":-100,"request_id":"r","cache_salt":"s","kv_transfer_params":{"a":[1]}}'
    policy = ModelPolicy(pass_operator_fields=passed)
    headers = {"x-vllm-priority": "-100", "x-data-parallel-rank": "0"}
    async with FaultServer(scripts.chat_json()) as worker, relay(worker, policy=policy) as gate:
        assert 200 == (await ask(gate.port, post(CHAT, dirty, headers))).status

        received = worker.requests[0]
        assert (dirty if passed else clean) == received.body
        assert ("-100" if passed else None) == received.header("x-vllm-priority")
        assert ("0" if passed else None) == received.header("x-data-parallel-rank")


ODD = {
    "surrogate": b'"\\ud83d"',
    "surrogates": b'["\\ude00\\ud83d","\\uDBFF x",{"\\udc00":"\\ud800"}]',
    "nan": b"NaN",
    "infinities": b"[Infinity,-Infinity,NaN]",
    "nan-in-text": b'["NaN \\ud83d -Infinity",-Infinity]',
    "escaped-backslash": b'"\\\\ud83d"',
    "quotes": b'"\\"model\\":\\"alias\\""',
    "looks-like-a-member": b'{"model":"alias","stream":true,"stream_options":null}',
    "huge-number": b"1e999999",
    "long-number": b"9" * 4000,
    "empty": b'""',
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_c71_what_strict_readers_refuse_survives_a_rewrite(relay: Relay, name: str, stream: bytes) -> None:
    """Lone surrogates and odd numbers before, between and behind what is replaced and removed: as they were."""
    template = b'{"x":%b,"model":"%b","y":[%b]%b,"stream":%b,"stream_options":{"include_usage":true},"z":%b}'
    odd = ODD[name]
    script = scripts.chat_stream() if stream == b"true" else scripts.chat_json()
    async with FaultServer(script) as worker, relay(worker) as gate:
        answer = await ask(gate.port, post(CHAT, template % (odd, b"alias", odd, b',"priority":1', stream, odd)))

        assert template % (odd, b"sim", odd, b"", stream, odd) == worker.requests[0].body
        assert 200 == answer.status
        await gate.ended(Outcome.OK)


async def test_c71_a_model_spelt_with_escapes_is_found(relay: Relay) -> None:
    """`\\u0073im` is `sim`: the same model, and no reason to touch the bytes."""
    body = b'{"m\\u006fdel":"\\u0073im","messages":[]}'
    aliased = b'{"m\\u006fdel":"\\u0061lias","messages":[]}'
    async with FaultServer(scripts.chat_json()) as worker, relay(worker) as gate, connect(gate.port) as client:
        for data in (body, aliased):
            client.send(post(CHAT, data))
            assert 200 == (await client.answer()).status

        assert body == worker.requests[0].body
        assert {"model": "sim", "messages": []} == worker.requests[1].json()
