"""
A worker's process tree without an engine: takes vLLM's arguments, answers like its API server, dies as told.

Below it runs a child that, like EngineCore, ignores SIGTERM and outlives its parent. Options that begin with `--fake-`
say how it misbehaves; all others are vLLM's and only noted. Standard library only, for `python -I`.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENGINE = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--served-model-name", required=True)
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--uds")
    parser.add_argument("--enforce-eager", action="store_true")
    parser.add_argument("--enable-prompt-tokens-details", action="store_true")
    parser.add_argument("--fake-exit-status", type=int, help="exit at once, before serving")
    parser.add_argument("--fake-die-after", type=int, help="exit with status 0 after so many health probes")
    parser.add_argument("--fake-ignore-term", action="store_true")
    parser.add_argument("--fake-never-ready", action="store_true")
    parser.add_argument("--fake-litter", action="store_true", help="leave a temporary file and a shared segment")
    return parser.parse_args()


class Handler(BaseHTTPRequestHandler):
    """The few routes the supervisor asks."""

    protocol_version = "HTTP/1.1"
    options: argparse.Namespace
    probes = 0

    def do_GET(self) -> None:
        if self.path == "/health":
            type(self).probes += 1
            if self.options.fake_die_after is not None and self.probes > self.options.fake_die_after:
                os._exit(0)
            self.answer(200, b"")
        elif self.path == "/v1/models" and self.allowed():
            entry = {"id": self.options.served_model_name, "object": "model", "max_model_len": 1024}
            self.answer(200, json.dumps({"object": "list", "data": [entry]}).encode())
        elif self.path == "/version":
            self.answer(200, b'{"version": "0.0-fake"}')
        elif self.path == "/metrics":
            self.answer(200, b'vllm:iteration_tokens_total_count{engine="0",model_name="m"} 7.0\n')
        else:
            self.answer(404, b'{"detail":"Not Found"}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if self.path == "/v1/completions" and self.allowed():
            self.answer(200, b'{"choices": [{"text": "x", "finish_reason": "length"}]}')
        else:
            self.answer(404, b'{"detail":"Not Found"}')

    def allowed(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {os.environ['VLLM_API_KEY']}"

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def address_string(self) -> str:
        return "client"

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the output is for what the supervisor reads."""


class Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


class UnixServer(Server):
    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", 0


def litter() -> None:
    """What vLLM leaves behind: a rendezvous file that it never removes, shared memory when it is killed."""
    with open(os.path.join(tempfile.gettempdir(), f"vllm_dist_{os.getpid()}"), "w"):
        pass
    kept = open(f"/dev/shm/psm_fake{os.getpid()}", "w+b")  # noqa: SIM115
    kept.truncate(4096)
    LITTER.append(mmap.mmap(kept.fileno(), 4096))


LITTER: list[mmap.mmap] = []
"""Mapped for as long as the process lives."""


def main() -> None:
    options = arguments()
    print(f"non-default args: {{'model': {options.model!r}}}", flush=True)
    if options.fake_exit_status is not None:
        print("ValueError: the fake was told to fail", file=sys.stderr, flush=True)
        sys.exit(options.fake_exit_status)
    Handler.options = options
    # Bound before the engine starts, like vLLM, so that a taken port fails early.
    server = UnixServer(options.uds, Handler) if options.uds else Server((options.host, options.port), Handler)
    if options.fake_litter:
        litter()
    engine = subprocess.Popen([sys.executable, "-I", "-S", "-c", ENGINE])
    print(f"(EngineCore pid={engine.pid}) Initializing a V1 LLM engine", flush=True)

    def stop(*_: object) -> None:
        if not options.fake_ignore_term:
            engine.kill()
            os._exit(0)

    signal.signal(signal.SIGTERM, stop)
    if options.fake_never_ready:
        threading.Event().wait()
    print("Application startup complete.", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
