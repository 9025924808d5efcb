"""Prompts are in the log only where the configuration wants them, and then no more of them than it says."""

from __future__ import annotations

import asyncio
import dataclasses
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.app import relay_policy
from gateway.clock import SystemClock
from gateway.config.load import settings_from_mapping
from gateway.log import EventLog
from gateway.record import ExchangeRecord
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.proxy.raw_client import CHAT, ask, chat, post, request
from tests.proxy.served import gateway

pytestmark = pytest.mark.anyio

PROMPT = "a secret of the client"


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """uvloop, as the gateway process runs."""
    return "asyncio", {"use_uvloop": True}


def logged_bytes(folder: Path, **logging: Any) -> int:
    models = {"m": {"workers": [{"url": "http://127.0.0.1:9000"}]}}
    return relay_policy(settings_from_mapping({"models": models, "logging": logging}, folder)).logged_body_bytes


def test_bodies_are_not_logged_unless_switched_on(tmp_path: Path) -> None:
    """A size alone is no wish."""
    assert [0, 0, 4096, 10] == [
        logged_bytes(tmp_path),
        logged_bytes(tmp_path, max_body_bytes=10),
        logged_bytes(tmp_path, bodies=True),
        logged_bytes(tmp_path, bodies=True, max_body_bytes=10),
    ]


async def lines_of(data: bytes, size: int) -> dict[str, Any]:
    """The log line of one request through a relay that keeps so many bytes of bodies."""
    async with (
        asyncio.timeout(20),
        FaultServer(scripts.chat_json()) as worker,
        gateway(worker, relay_policy=lambda policy: dataclasses.replace(policy, logged_body_bytes=size)) as served,
    ):
        await ask(served.port, data)
        record: ExchangeRecord = await served.records.record()
    lines: list[bytes] = []
    EventLog(lines.append, SystemClock()).request(record)
    line: dict[str, Any] = json.loads(lines[0])
    return line


async def test_a_line_has_the_beginning_of_the_body_and_no_more() -> None:
    """Cut at the size, also for a body that was compressed or could not be read."""
    content = json.dumps({**chat(stream=False), "user": PROMPT}).encode()
    packed = request(
        "POST", CHAT, {"content-type": "application/json", "content-encoding": "gzip"}, gzip.compress(content)
    )

    assert content[:100].decode() == (await lines_of(post(CHAT, content), 100))["body"]
    assert content[:100].decode() == (await lines_of(packed, 100))["body"]
    assert "{no json" == (await lines_of(post(CHAT, b"{no json"), 100))["body"]


async def test_a_line_has_nothing_of_the_body_by_default() -> None:
    """Neither the field nor the text anywhere else."""
    content = {**chat(stream=False), "messages": [{"role": "user", "content": PROMPT}]}

    line = await lines_of(post(CHAT, content), 0)

    assert "body" not in line
    assert PROMPT not in json.dumps(line)
