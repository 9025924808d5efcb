"""A configuration file of simulated workers that a test changes, and the gateway that runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.served import Served, wait_until

READY_S = 60
SIMULATOR = ["{python}", "-m", "loadtest.servers.simulator"]


def document(**top: Any) -> dict[str, Any]:
    """Two quick workers of model `m`."""
    return {
        "models": {"m": model()},
        "engines": {"default": {"command": SIMULATOR}},
        "watch": {"backoff_initial_s": 0.2, "backoff_max_s": 0.5, "probe_interval_s": 0.5},
        **top,
    }


def model(*flags: str, replicas: int = 2, start_s: float = 0.5, **keys: Any) -> dict[str, Any]:
    """A simulated model with simulator flags."""
    launch = {"extra_args": ["--sim-start-s", str(start_s), *flags], **keys.pop("launch", {})}
    return {"model": "simulated", "replicas": replicas, "launch": launch, **keys}


class FleetFile:
    """The file, and commands for the gateway that was started with it."""

    def __init__(self, folder: Path, content: dict[str, Any]) -> None:
        self.path = folder / "fleet.yaml"
        self.write(content)
        self.state = folder / "state"
        self.served = Served(
            ["-c", str(self.path)], self.state, environ={"GATEWAY_CACHE_DIR": str(folder / "cache"), "COLUMNS": "200"}
        )

    def write(self, content: dict[str, Any]) -> None:
        """JSON is YAML."""
        self.path.write_text(json.dumps(content))

    def gateway(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gateway", *arguments],
            env=self.served.environ,
            capture_output=True,
            text=True,
            timeout=120,
        )

    def workers(self) -> dict[str, dict[str, Any]]:
        """By name; none while the gateway does not answer."""
        if self.served.process.poll() is not None:
            raise AssertionError(f"gateway up ended with {self.served.process.returncode}\n{self.served.output}")
        try:
            return {worker["name"]: worker for worker in self.served.status()["workers"]}
        except httpx.TransportError:
            return {}

    def wait_states(self, within_s: float = READY_S, **states: str) -> None:
        """Until the named workers (`m_0` is m-0) are in these states."""
        wanted = {name.replace("_", "-"): state for name, state in states.items()}

        def reached() -> bool:
            found = self.workers()
            return all(name in found and found[name]["state"] == state for name, state in wanted.items())

        wait_until(reached, within_s=within_s, what=f"{wanted}", context=lambda: self.served.output)

    def gateway_pid(self) -> int:
        """Of the only one that is not leaving."""
        (pid,) = self.gateway_pids()
        return pid

    def gateway_pids(self) -> list[int]:
        """Slot by slot; replaced processes that finish their streams are left out."""
        processes = self.served.status()["gateway_processes"]
        return [process["pid"] for process in processes if process["state"] != "leaving"]
