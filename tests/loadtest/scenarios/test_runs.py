"""Every scenario through the real runner, against the simulator: what is sent arrives, and the books say so."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from loadtest.report.folder import read_result
from loadtest.result import RunResult
from loadtest.scenarios import scenarios
from loadtest.servers.simulation.options import SimulatorOptions
from loadtest.servers.simulator import serving
from tests.loadtest.scenarios.sessions import MOONCAKE

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

QUICK = SimulatorOptions(
    names=("m",), itl_ms=0.5, itl_ms_per_seq=0, prefill_ms_per_token=0.001, prompt_tokens_details=True
)
SHORT: dict[str, tuple[str, ...]] = {
    "burst": ("--rate", "20"),
    "soak": ("--rate", "10"),
    "overload": ("--rate", "30"),
    "cancel": ("--option", "early_s=0.02"),
    "multi-turn": ("--option", "output_tokens=8"),
    "shared-prompt": ("--option", "output_tokens=8"),
}
INVALID = 4
"""Also fine: this machine may be busy, and nothing is timed here."""


async def run(url: str, results: Path, *flags: str) -> tuple[RunResult, str]:
    """One run of a second; whatever it prints."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "loadtest", "--target", url, "--results", str(results), "--calibrate", "never"),
        *flags,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "NO_PROXY": "127.0.0.1"},
    )
    output = (await asyncio.wait_for(process.communicate(), 100))[0].decode()
    assert process.returncode in (0, INVALID), output
    (folder,) = os.listdir(results)
    return read_result(results / folder), output


@pytest.mark.parametrize("name", scenarios())
async def test_a_scenario_runs(name: str, tmp_path: Path) -> None:
    """Nothing fails, its kinds are its own, its settings say what was sent; clients that leave are no failures."""
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    flags = ("--option", f"file={tmp_path / 'trace.jsonl'}") if name == "replay" else SHORT.get(name, ())
    async with serving(QUICK) as simulator:
        result, output = await run(simulator.url, tmp_path / "results", name, "--duration", "0.6s", *flags)
        unfinished = simulator.engine.unfinished
    books, settings = result.ledger, result.settings

    assert 0 == books.failed, output
    assert books.ok + books.cancelled == books.scheduled - books.unsent > 0
    assert {record.kind for record in books.records} <= set(scenarios()[name].kinds)
    assert "tokenize" == settings["lengths"]["source"]
    assert 16 == len(settings["bodies_digest"])
    assert 0 == unfinished, "what the leavers held is freed"
    if name == "cancel":
        assert books.cancelled
    if name == "embeddings":
        assert books.prompt_tokens == pytest.approx(8 * 128 * books.ok, rel=0.02)
    if name in ("shared-prompt", "multi-turn"):
        assert books.cached_tokens > books.prompt_tokens / 4
    if name == "chat":
        assert 0 == books.cached_tokens
        assert {128} == {record.prompt_tokens for record in books.records}
        assert {64} == {record.output_tokens for record in books.records}
    if name == "tenants":
        assert {record.tenant for record in books.records} <= {"interactive", "batch", "documents"}


async def test_tenants_send_their_own_keys_and_no_result_holds_one(tmp_path: Path) -> None:
    """The server takes these two keys only; the figures are told by tenant."""
    keys = ("gw-key-of-one", "gw-key-of-two")
    tables = [
        f'[{name}]\nprompt_tokens = 40\noutput_tokens = 4\nkey = "{key}"' for name, key in zip("ab", keys, strict=True)
    ]
    (tmp_path / "tenants.toml").write_text("\n".join(tables))
    async with serving(replace(QUICK, api_keys=keys)) as simulator:
        flags = ("--option", f"file={tmp_path / 'tenants.toml'}", "--api-key", keys[0], "--duration", "0.6s")
        result, output = await run(simulator.url, tmp_path / "results", "tenants", *flags)
    stored = [file.read_bytes() for file in (tmp_path / "results").rglob("*") if file.is_file()]

    assert 0 == result.ledger.failed
    assert {"a", "b"} == {record.tenant for record in result.ledger.records}
    assert len(stored) >= 5
    assert not [1 for data in (*stored, output.encode()) if b"gw-key" in data]


async def test_conversations_of_a_file_are_played_by_users(tmp_path: Path) -> None:
    """They have no times, so the loop is closed; later turns come after the model's own answers."""
    samples = Path(__file__).parents[1] / "datasets" / "samples"
    async with serving(QUICK) as simulator:
        flags = ("replay", "--option", f"file={samples / 'sharegpt.json'}", "--duration", "0.6s")
        result, _ = await run(simulator.url, tmp_path / "results", *flags)

    assert 8 == result.settings["users"]
    assert {"first-turn", "later-turn"} == {record.kind for record in result.ledger.records}
    assert 0 == result.ledger.failed


async def test_a_trace_sends_at_its_own_times(tmp_path: Path) -> None:
    """No rate is asked for; two entries half a second apart."""
    (tmp_path / "trace.jsonl").write_text(MOONCAKE)
    async with serving(QUICK) as simulator:
        flags = ("replay", "--option", f"file={tmp_path / 'trace.jsonl'}", "--duration", "1s")
        result, _ = await run(simulator.url, tmp_path / "results", *flags)

    assert [0.0, 0.5] == pytest.approx(sorted(record.scheduled_s for record in result.ledger.records), abs=1e-6)
