"""
Serves expositions of machines that are not here: vLLM as recorded, and a gateway with GPUs that workers hold.

A recording is one moment; rates need several. So each scrape finds every counter further on, by what the recording
counted until then, or by one where it counted nothing: features that the recorded machine did not use move as well.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import catalogue, gpu_values, render
from gateway.workers.nvml import GpuSensors
from tests.grafana.reading import RECORDED

GATEWAY = "/gateway"
RELEASES = ("0.25-h200", "0.32-cpu")


@dataclass(frozen=True, slots=True)
class Holder:
    """A worker and the GPUs it has."""

    name: str
    model: str
    gpus: tuple[int, ...]


def gateway(step: int) -> bytes:
    """A gateway's metrics, as it would render them: two workers on two GPUs each, and attempts that were repeated."""
    gpus = [GpuSensors(i, f"GPU-{i}", "NVIDIA H200", 141 << 30, 120 << 30, 0.8, 60.0 + i, 600.0) for i in range(4)]
    holders = [Holder("llama-0", "llama", (0, 1)), Holder("llama-1", "llama", (2, 3))]
    retries = {(catalogue.RETRIES, ("llama", "connect")): [float(step)]}
    return render(retries, more=gpu_values(gpus, holders))


def vllm(release: str, step: int) -> bytes:
    """A recorded exposition, `step` scrapes later."""
    text = (RECORDED / f"vllm-{release}.metrics.txt").read_text(encoding="utf-8")
    written = []
    for family in text_string_to_metric_families(text):
        written.append(f"# TYPE {family.name} {family.type}")
        for sample in family.samples:
            value = sample.value
            if family.type == "counter" or sample.name.endswith(("_bucket", "_count", "_sum")):
                value += step * (value or (0 if sample.name.endswith("_bucket") else 1))
            labels = ",".join(f'{name}="{text}"' for name, text in sample.labels.items())
            written.append(f"{sample.name}{{{labels}}} {value}")
    return ("\n".join(written) + "\n").encode()


class _Handler(BaseHTTPRequestHandler):
    scrapes: Counter[str]

    def do_GET(self) -> None:
        self.scrapes[self.path] += 1
        step = self.scrapes[self.path]
        content = gateway(step) if self.path == GATEWAY else vllm(self.path.removeprefix("/vllm-"), step)
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are not worth a line."""


@contextmanager
def replaying() -> Iterator[list[dict[str, object]]]:
    """A server with the replays; gives what Prometheus's file discovery takes."""
    handler = type("Handler", (_Handler,), {"scrapes": Counter()})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    host = f"127.0.0.1:{server.server_port}"
    try:
        yield [
            _target(host, GATEWAY, {"job": "gateway"}),
            *(
                _target(host, f"/vllm-{name}", {"job": "vllm", "model": "recorded", "worker": f"recorded-{name}"})
                for name in RELEASES
            ),
        ]
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _target(host: str, path: str, labels: dict[str, str]) -> dict[str, object]:
    return {"targets": [host], "labels": {"__metrics_path__": path, "instance": f"replayed{path}", **labels}}
