"""
How long does one large request hold up everybody else's tokens? A 32 MiB body of token ids beside paced streams.

The streams run once undisturbed and once while large bodies are sent, one after the other, to the other worker. What
counts is the largest lag (received minus sent) of any event. Sends traffic to 127.0.0.1 only.
"""

from __future__ import annotations

import argparse
import json
import socket
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadtest.bench import targets
from loadtest.bench.processes import running, wait_answering

UPSTREAMS = (9100, 9101)
PORT = 9200
ADMIN_PORT = 9201
BODY_BYTES = 32 * 1024 * 1024
BODIES = 4
STREAMS = 8
LIMIT_MS = 60.0


def body_of_token_ids(size: int) -> bytes:
    """A completions request of about `size` bytes whose prompt is a list of token ids."""
    ids = b",".join(b"%d" % (1000 + number % 30000) for number in range(size // 6))
    return b'{"model":"%b","max_tokens":1,"prompt":[%b]}' % (targets.MODEL.encode(), ids)


def send_bodies(count: int) -> None:
    """Post the large body `count` times over one connection each; ends the program on any other answer than 200."""
    body = body_of_token_ids(BODY_BYTES)
    head = (
        "POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode()
    for _ in range(count):
        with socket.create_connection(("127.0.0.1", PORT), timeout=60) as connection:
            connection.sendall(head)
            connection.sendall(body)
            answer = connection.recv(4096)
        if not answer.startswith(b"HTTP/1.1 200"):
            sys.exit(f"a large body was answered {answer[:60]!r}")


def stream_lags(*, disturbed: bool) -> dict[str, Any]:
    """Lags of the paced streams, with or without large bodies beside them."""
    load = [sys.executable, "-m", "loadtest.bench.relay_client", str(PORT), "stream"]
    options = ["--concurrency", str(STREAMS), "--requests", str(STREAMS * 3)]
    streams = subprocess.Popen([*load, *options], stdout=subprocess.PIPE)
    if disturbed:
        subprocess.run([sys.executable, "-m", "loadtest.bench.large_bodies", "--send", str(BODIES)], check=True)
    output, _ = streams.communicate()
    result: dict[str, Any] = json.loads(output)
    return result


def main() -> None:
    """Command line: measure, or (internally) send the bodies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--send", type=int, metavar="COUNT", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        send_bodies(options.send)
        return
    with tempfile.TemporaryDirectory(prefix="large-bodies-") as name, ExitStack() as stack:
        folder = Path(name)
        for port in UPSTREAMS:
            upstream = [sys.executable, "-m", "loadtest.bench.paced_upstream", str(port)]
            stack.enter_context(running(upstream, folder / f"upstream-{port}.log"))
            wait_answering(port, "the scripted worker", within_s=15)
        target = targets.gateway(folder, PORT, ADMIN_PORT, UPSTREAMS)
        stack.enter_context(running(list(target.command), folder / "gateway.log"))
        wait_answering(PORT, target.name, within_s=60, log=folder / "gateway.log")
        alone, beside = stream_lags(disturbed=False), stream_lags(disturbed=True)
    for text, result in (("alone", alone), (f"beside {BODIES} bodies of 32 MiB", beside)):
        print(f"streams {text}: lag p50 {result['lag_p50_ms']} ms, largest {result['lag_max_ms']} ms")
        if result["errors"]:
            sys.exit("tokens were lost or garbled: the figures are void")
    added = beside["lag_max_ms"] - alone["lag_max_ms"]
    verdict = "passed" if added <= LIMIT_MS else "FAILED"
    print(f"one large body holds an event up by at most {added:.1f} ms more (bar {LIMIT_MS:.0f} ms): {verdict}")


if __name__ == "__main__":
    main()
