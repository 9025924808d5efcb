"""A fleet of simulated workers and requests of every kind, so that every panel has something to show."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx

from gateway.clock import SystemClock
from gateway.keys import KeysFile
from tests.e2e.served import Served

TENANTS = ("acme", "batch", "bench")

FLEET = """
models:
  demo:
    model: simulated
    replicas: 2
    price_per_worker_hour: 3.5
    launch: {extra_args: [--sim-start-s, "0.2", --enable-prompt-tokens-details]}
  # A KV cache for less than two requests: the younger one is put back to wait.
  tight:
    model: simulated
    launch: {extra_args: [--sim-start-s, "0.2", --sim-kv-tokens, "120"]}
  # Its engine makes no step from the second request after the four of the supervisor's warm-up on.
  hung:
    model: simulated
    launch: {extra_args: [--sim-start-s, "0.2", --sim-hang-after, "5"]}
  # Ends with an error at the third request after its warm-up, each time.
  frail:
    model: simulated
    launch: {extra_args: [--sim-start-s, "0.2", --sim-exit-after-requests, "1:6"]}
  # Takes one request at a time; one more may wait, others are turned away.
  narrow:
    model: simulated
    max_in_flight: 1
    max_queued: 1
    launch: {extra_args: [--sim-start-s, "0.2"]}
engines:
  default:
    command: ["{python}", "-m", "loadtest.servers.simulator"]
watch:
  # The hung worker stays as it is while the test looks.
  hang_idle_s: 600
  backoff_initial_s: 0.1
  backoff_max_s: 0.2
"""

FAKE_DRIVER = """
import sys
from tests.workers.fake_nvml import FakeNvml
library = FakeNvml(2)
for board in library.boards:
    board.utilization_percent, board.used_bytes = 42, 8 * 1024**3
sys.modules[__name__] = library
"""


def write_fleet(folder: Path) -> Path:
    """The configuration file, and in `driver/` a stand-in for NVIDIA's library with two GPUs."""
    (folder / "driver").mkdir()
    (folder / "driver" / "pynvml.py").write_text(FAKE_DRIVER, encoding="utf-8")
    file = folder / "fleet.yaml"
    file.write_text(FLEET, encoding="utf-8")
    return file


def create_keys(state: Path) -> dict[str, str]:
    """A key for each of the tenants, in the state directory of a gateway that is about to start."""
    state.mkdir(mode=0o700)
    file = KeysFile(state / "keys.json", SystemClock())
    return {name: file.create(name).secret for name in TENANTS}


def _chat(model: str, **more: object) -> dict[str, object]:
    return {"model": model, "messages": [{"role": "user", "content": "Tell me of bridges. " * 6}], **more}


class Traffic:
    """Sends requests to a running gateway with the keys of two tenants; `held` keeps some of them open."""

    def __init__(self, served: Served, keys: Mapping[str, str]) -> None:
        self._served = served
        self._keys = keys

    def send(self) -> None:
        """A few dozen requests, good and bad, from eight threads; returns when all have ended."""
        with ThreadPoolExecutor(8) as pool:
            for number in range(24):
                pool.submit(self._stream, _chat("demo", max_tokens=24, user=str(number)), TENANTS[number % 2])
            for _ in range(6):
                pool.submit(self._stream, _chat("tight", max_tokens=60, ignore_eos=True))
            for _ in range(8):
                pool.submit(self._stream, _chat("narrow", max_tokens=48), "batch")
            for _ in range(4):
                pool.submit(self._whole, _chat("demo", max_tokens=8))
                pool.submit(self._whole, _chat("nobody"))
            for _ in range(3):
                pool.submit(self._leave)

    def break_worker(self) -> None:
        """Requests to the frail worker until it has ended once more."""
        for _ in range(3):
            self._stream(_chat("frail", max_tokens=8))

    def command(self, worker: str, command: str) -> None:
        """As an operator would: `drain` before maintenance, `start` after it."""
        token = (self._served.state / "admin.token").read_text(encoding="utf-8").strip()
        self._served.http.post(
            f"{self._served.admin}/workers/{worker}/{command}", headers={"Authorization": f"Bearer {token}"}
        ).raise_for_status()

    def _stream(self, body: dict[str, object], tenant: str = "acme") -> None:
        headers = {"x-api-key": self._keys[tenant]}
        with self._served.http.stream("POST", self._url, json={**body, "stream": True}, headers=headers) as answer:
            try:
                for _ in answer.iter_bytes():
                    pass
            except httpx.RemoteProtocolError:
                return  # the frail worker's end is in the stream

    def _whole(self, body: dict[str, object]) -> None:
        self._served.http.post(self._url, json=body, headers={"x-api-key": self._keys["acme"]})

    def _leave(self) -> None:
        """A client that closes its connection after the first bytes of a stream."""
        with self._open(_chat("demo", max_tokens=400, ignore_eos=True)) as connection:
            connection.recv(64)

    @contextmanager
    def held(self) -> Iterator[None]:
        """A stream that the hung worker begins, and two that it never answers because it hangs by then."""
        with ExitStack() as stack:
            first = stack.enter_context(self._open(_chat("hung", max_tokens=4000, ignore_eos=True)))
            first.recv(64)
            for _ in range(2):
                stack.enter_context(self._open(_chat("hung", max_tokens=4000, ignore_eos=True)))
            yield

    def _open(self, body: dict[str, object]) -> socket.socket:
        content = json.dumps({**body, "stream": True}).encode()
        connection = socket.create_connection(("127.0.0.1", self._served.port), timeout=30)
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self._served.port}\r\n"
            f"X-Api-Key: {self._keys['acme']}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(content)}\r\n\r\n"
        )
        connection.sendall(head.encode() + content)
        return connection

    @property
    def _url(self) -> str:
        return f"{self._served.base}/v1/chat/completions"
