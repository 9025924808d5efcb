"""Tenants of a running gateway of two processes: counted as logged, kept through deaths, never of a client's making."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import string
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from gateway.clock import SystemClock
from gateway.keys import KeysFile
from tests.cli.fleet_file import FleetFile, document, model
from tests.e2e.served import wait_until
from tests.metrics.running import LONG_S, Key, Running
from tests.proxy.raw_client import chat, connect, post

pytestmark = [pytest.mark.integration, pytest.mark.timeout(240)]

CHAT = "/v1/chat/completions"
ATTEMPTS = 10_000
CLIENTS = 8
TOGETHER = 10


@dataclass
class Keyed:
    """A running fleet, the keys of its tenants, and the file that they are in."""

    running: Running
    file: KeysFile
    secrets: dict[str, str]

    def ask(self, tenant: str) -> int:
        """The status of a small request, on a connection of its own."""
        answer = httpx.post(
            f"{self.running.file.served.base}/v1/completions",
            json={"model": "m", "prompt": "a", "max_tokens": 2},
            headers={"x-api-key": self.secrets[tenant]},
            trust_env=False,
            timeout=LONG_S,
        )
        return answer.status_code


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    """Two gateway processes, a worker, and two tenants, one of whom may have two requests at a time."""
    content = document(models={"m": model(replicas=1)}, processes=2, logging={"format": "json"})
    fleet = FleetFile(tmp_path_factory.mktemp("tenants"), content)
    fleet.state.mkdir(mode=0o700)
    keys = KeysFile(fleet.state / "keys.json", SystemClock())
    secrets = {"acme": keys.create("acme").secret, "batch": keys.create("batch", max_in_flight=2).secret}
    with fleet.served:
        fleet.wait_states(m_0="ready")
        yield Keyed(Running(fleet), keys, secrets)


async def traffic(keyed: Keyed) -> None:
    """Streams and whole answers of both tenants at once, one of them beyond its limit; no keys, and wrong ones."""

    def asked(tenant: str, path: str = CHAT, **body: Any) -> bytes:
        return post(path, {**chat(), "model": "m", **body}, {"x-api-key": keyed.secrets[tenant]})

    wanted = [
        *(asked("acme", max_tokens=3 + n, stream=bool(n % 2)) for n in range(10)),
        *(asked("batch", max_tokens=40, stream=True) for _ in range(8)),
        asked("acme", model="no such model"),
        asked("acme", "/v1/responses/resp_1"),
        post(CHAT, chat()),
        *(post(CHAT, chat(), {"authorization": f"Bearer sk-wrong-{n}"}) for n in range(3)),
    ]

    async def ask(data: bytes) -> None:
        async with connect(keyed.running.port) as client:
            client.send(data)
            await client.answer()

    async def leave() -> None:
        async with connect(keyed.running.port) as client:
            client.send(asked("acme", max_tokens=500, ignore_eos=True, stream=True))
            answer = await client.head()
            for _ in range(4):
                await client.chunk(answer)
            client.reset()

    async with asyncio.timeout(LONG_S), asyncio.TaskGroup() as group:
        for data in wanted:
            group.create_task(ask(data))
        group.create_task(leave())


def of_tenants(samples: Mapping[Key, float], name: str) -> dict[tuple[str, ...], int]:
    """The values of a metric by its labels in alphabetical order, without the zeros."""
    return {
        tuple(value for _, value in sorted(labels)): int(value)
        for (found, labels), value in samples.items()
        if found == name and value
    }


def test_tenants_are_what_the_log_lines_add_up_to_and_they_are_all_there_is(keyed: Keyed) -> None:
    """Outcomes and tokens over both processes; with the refused keys, which are nobody's, the sum is the total."""
    asyncio.run(traffic(keyed))
    lines, samples = keyed.running.settled()
    whose = [line for line in lines if "tenant" in line]
    outcomes = of_tenants(samples, "gateway_tenant_requests_total")
    totals = Counter[str]()
    for (_, _, outcome), value in of_tenants(samples, "gateway_requests_total").items():
        totals[outcome] += value
    totals["client_error"] -= len(lines) - len(whose)
    by_outcome = Counter[str]()
    for (outcome, _), value in outcomes.items():
        by_outcome[outcome] += value

    assert {0, 1} == {line["slot"] for line in lines}
    assert {"invalid_api_key"} == {line["error_code"] for line in lines if "tenant" not in line}
    assert Counter((line["outcome"], line["tenant"]) for line in whose) == outcomes
    assert totals == by_outcome
    assert {"ok", "client_error", "client_closed", "rejected"} <= {outcome for outcome, _ in outcomes}
    for kind in ("prompt", "output"):
        told = Counter[tuple[str]]()
        for line in whose:
            if kind == "prompt" or "output_tokens_estimated" not in line:
                told[(line["tenant"],)] += line.get(f"{kind}_tokens", 0)
        found = of_tenants(samples, f"gateway_tenant_{kind}_tokens_total")
        assert told == found
        assert samples[f"gateway_{kind}_tokens_total", frozenset({("model", "m")})] == sum(found.values())
    assert {} == of_tenants(samples, "gateway_tenant_requests_in_flight")


def test_tenants_come_and_go_and_what_was_counted_stays(keyed: Keyed) -> None:
    """A key made now shows up with its first request; a revoked one's counts stay, also when a process is killed."""
    keyed.ask("batch")
    keyed.secrets["late"] = keyed.file.create("late").secret
    _, before = keyed.running.settled()
    wait_until(lambda: keyed.ask("late") == 200, within_s=LONG_S, what="the new key let in")
    keyed.file.revoke("batch")
    wait_until(lambda: keyed.ask("batch") == 401, within_s=LONG_S, what="the revoked key refused")
    _, after = keyed.running.settled()
    os.kill(keyed.running.file.gateway_pids()[0], signal.SIGKILL)
    crashes = ("gateway_process_crashes_total", frozenset[tuple[str, str]]())
    wait_until(lambda: keyed.running.samples()[crashes] == 1, within_s=LONG_S, what="the process gone")
    at_the_end = keyed.running.samples()

    tenants = {key: value for key, value in after.items() if key[0].startswith("gateway_tenant_")}
    assert {"acme", "batch"} == {dict(labels)["tenant"] for _, labels in before if "tenant" in dict(labels)}
    assert {"acme", "batch", "late"} == {dict(labels)["tenant"] for _, labels in tenants}
    assert all(before[key] <= tenants[key] for key in before.keys() & tenants.keys())
    assert tenants == {key: at_the_end[key] for key in tenants}
    assert {key for key in at_the_end if key[0].startswith("gateway_tenant_")} == tenants.keys()


def test_made_up_keys_make_no_series(keyed: Keyed) -> None:
    """Ten thousand of them, some with a tenant's name for a key: every one is refused and counted, and nobody's."""
    asyncio.run(attempts(keyed.running.port, CLIENTS * TOGETHER))  # the series of the refusals themselves
    _, before = keyed.running.settled()
    asyncio.run(attempts(keyed.running.port, ATTEMPTS))
    _, after = keyed.running.settled()
    mine = [key for key in after if key[0].startswith("gateway_tenant_")]
    refused = ("model", "other"), ("endpoint", CHAT), ("outcome", "client_error")
    total = ("gateway_requests_total", frozenset(refused))

    assert set(before) == set(after)
    assert {key: before[key] for key in mine} == {key: after[key] for key in mine}
    assert ATTEMPTS == after[total] - before[total]


async def attempts(port: int, number: int) -> None:
    """So many requests, each with a key of its own, over a few connections, a handful at a time on each."""
    chance = random.Random(11)

    def made_up() -> bytes:
        word = "".join(chance.choices(string.ascii_letters, k=chance.randint(1, 40)))
        key = chance.choice([f"sk-{word}", word, "acme"])
        header = chance.choice([{"authorization": f"Bearer {key}"}, {"x-api-key": key}, {"api-key": key}])
        return post(CHAT, b"{}", header)

    async def one_client(count: int) -> None:
        async with connect(port) as client:
            for _ in range(count // TOGETHER):
                client.send(b"".join(made_up() for _ in range(TOGETHER)))
                for _ in range(TOGETHER):
                    assert 401 == (await client.answer()).status

    async with asyncio.timeout(100), asyncio.TaskGroup() as group:
        for _ in range(CLIENTS):
            group.create_task(one_client(number // CLIENTS))
