"""The calls that differ between systems."""

from __future__ import annotations

import os
import subprocess
import sys

import anyio
import pytest

from gateway.workers.platform import exit_status, one_per_core, wait_for_exit

pytestmark = pytest.mark.anyio


def test_one_cpu_of_every_core() -> None:
    """A part of what was given, in order, the first included; unknown CPUs count as cores of their own."""
    cpus = tuple(range(os.cpu_count() or 1))
    chosen = one_per_core(cpus)
    assert chosen[0] == cpus[0]
    assert list(chosen) == sorted(set(chosen) & set(cpus))
    assert (100_000, 100_001) == one_per_core((100_000, 100_001))


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the child is reaped by the look")
@pytest.mark.parametrize(("code", "expected"), [("pass", 0), ("raise SystemExit(7)", 7), ("import os; os.abort()", -6)])
async def test_an_exit_is_seen_without_reaping(code: str, expected: int) -> None:
    """The pid, and with it the session's id, stays taken until the sweep is done."""
    child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], stderr=subprocess.DEVNULL)  # noqa: ASYNC220
    with anyio.fail_after(30):
        while (status := exit_status(child)) is None:
            await wait_for_exit(child.pid)
    assert expected == status
    assert child.returncode is None
    os.kill(child.pid, 0)
    assert expected == child.wait()
    assert expected == exit_status(child)
    await wait_for_exit(child.pid)
