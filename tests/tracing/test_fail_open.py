"""A collector that is down, slow or wrong costs spans, which are counted; and traces that are off cost nothing."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from gateway.errors import ConfigurationError, EnvironmentProblem
from gateway.tracing import TracingSetup, open_tracing, read_headers, require_usable
from gateway.tracing.attributes import OPERATIONS
from gateway.tracing.otlp import BATCH, CLOSE_S, MAX_WAITING, CountedBatches
from gateway.types import Endpoint
from loadtest.servers import scripts
from loadtest.servers.fault_server import FaultServer
from tests.proxy.raw_client import CHAT, ask, chat, post
from tests.proxy.served import gateway
from tests.tracing.collector import Collector

pytestmark = pytest.mark.anyio

NOBODY = "http://127.0.0.1:9"


async def test_a_collector_that_is_down_costs_no_request_and_does_not_hold_up_the_end() -> None:
    """Every request is answered, every span is counted as lost, and closing takes no longer than it may."""
    tracing = open_tracing(TracingSetup(NOBODY, send_every_s=0.02, give_up_s=0.1))
    async with (
        asyncio.timeout(30),
        FaultServer(scripts.chat_stream()) as worker,
        gateway(worker, tracer=tracing.tracer) as served,
    ):
        for _ in range(10):
            assert 200 == (await ask(served.port, post(CHAT, chat()))).status
        await served.idle()
    began_s = time.monotonic()
    await asyncio.to_thread(tracing.close)

    assert time.monotonic() - began_s < 5 * CLOSE_S
    while tracing.dropped < 20:  # noqa: ASYNC110  # the exporter gives up in its own time
        await asyncio.sleep(0.01)
    assert 20 == tracing.dropped


async def test_a_collector_that_refuses_is_counted_and_one_that_is_back_gets_the_rest(collector: Collector) -> None:
    """What was refused is lost, later spans arrive."""
    tracing = open_tracing(TracingSetup(collector.url, send_every_s=0.02, headers={"x-collector-key": "k"}))
    collector.answers.append(400)
    async with (
        asyncio.timeout(30),
        FaultServer(scripts.chat_stream()) as worker,
        gateway(worker, tracer=tracing.tracer) as served,
    ):
        await ask(served.port, post(CHAT, chat()))
        await served.idle()
        while tracing.dropped < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        await ask(served.port, post(CHAT, chat()))
        await asyncio.to_thread(collector.wait, 2)
    tracing.close()

    assert 2 == tracing.dropped
    assert {"/v1/traces"} == set(collector.paths)
    assert "k" == collector.headers["x-collector-key"]


class StuckExporter(SpanExporter):
    """Takes the first batch and keeps it until `free`."""

    def __init__(self) -> None:
        self.stuck = threading.Event()
        self.free = threading.Event()
        self.got: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.stuck.set()
        assert self.free.wait(20)
        self.got += spans
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass


async def test_spans_that_find_the_queue_full_are_counted() -> None:
    """All spans are either exported or counted as lost."""
    exporter = StuckExporter()
    batches = CountedBatches(exporter)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(batches)
    tracer = provider.get_tracer("test")
    total = BATCH + MAX_WAITING + 100
    for number in range(total):
        tracer.start_span("span").end()
        if number == BATCH:
            assert exporter.stuck.wait(20)
    exporter.free.set()
    await asyncio.to_thread(provider.shutdown)

    assert 0 < batches.dropped <= 100
    assert total == len(exporter.got) + batches.dropped


def test_traces_that_are_off_import_nothing_and_leave_the_relay_without_a_tracer() -> None:
    """A gateway process without `traces.endpoint` loads neither SDK nor exporter nor what would use them."""
    program = (
        "import sys, gateway.app, gateway.control.composition, gateway.cli\n"
        # FastAPI imports the bare API by itself where it is installed.
        "ours = ('opentelemetry.sdk', 'opentelemetry.exporter', 'gateway.tracing.otlp', 'gateway.tracing.spans')\n"
        "print(', '.join(name for name in sys.modules if name.startswith(ours)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)

    assert (0, "\n") == (done.returncode, done.stdout), done.stderr


async def test_without_traces_a_client_s_context_reaches_the_worker_untouched() -> None:
    """The worker may trace where the gateway does not."""
    context = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1,b=2"}
    async with asyncio.timeout(20), FaultServer(scripts.chat_stream()) as worker, gateway(worker) as served:
        await ask(served.port, post(CHAT, chat(), context))
        received = worker.requests[0]

    assert context == {name: received.header(name) for name in context}


def test_a_missing_sdk_is_told_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is started, and only where traces are configured."""
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)

    require_usable(None, None)
    with pytest.raises(EnvironmentProblem, match=r"not installed.*pip install 'vllm-gateway\[traces\]'"):
        require_usable("http://127.0.0.1:4318", None)


def test_headers_for_the_collector_come_from_a_file_that_is_never_repeated(tmp_path: Path) -> None:
    """Blank lines are skipped; a line that is no header is told by its number alone."""
    good, bad = tmp_path / "good", tmp_path / "bad"
    good.write_text("X-Key: secret:with colon\n\nx-tenant:  a \n")
    bad.write_text("X-Key: a\nsecret\n")

    assert {"X-Key": "secret:with colon", "x-tenant": "a"} == read_headers(good)
    with pytest.raises(ConfigurationError, match=r"line 2 of .*bad") as caught:
        require_usable("http://127.0.0.1:4318", bad)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(TracingSetup("http://c", headers={"x": "secret"}))


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        ("http://c:4318", "http://c:4318/v1/traces"),
        ("http://c:4318/", "http://c:4318/v1/traces"),
        ("https://c/otlp/v1/traces", "https://c/otlp/v1/traces"),
    ],
)
def test_an_endpoint_without_a_path_is_completed(endpoint: str, url: str) -> None:
    """As the protocol's own base URL is."""
    assert url == TracingSetup(endpoint).url


def test_every_endpoint_has_an_operation() -> None:
    """A new route does not fail its first traced request."""
    assert set(Endpoint) == set(OPERATIONS)


class Raising(SpanExporter):
    """Fails as requests and protobuf do with text that they cannot encode."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        raise UnicodeEncodeError("latin-1", "\u20ac", 0, 1, "ordinal not in range(256)")


def test_spans_whose_export_raises_are_counted_too() -> None:
    """The SDK logs the error and goes on; the counter must not say that they arrived."""
    batches = CountedBatches(Raising(), send_every_s=0.01)
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(batches)
    for _ in range(3):
        provider.get_tracer("t").start_span("s").end()
    provider.shutdown()

    assert 3 == batches.dropped


@pytest.mark.parametrize("value", ["s\u20accret", "s\x07cret", "s\u00e4cret"])
def test_a_header_value_that_cannot_be_sent_is_refused_and_not_repeated(tmp_path: Path, value: str) -> None:
    """It would fail at every batch; and it is somebody's key."""
    file = tmp_path / "headers"
    file.write_text(f"x-fine: tab\tand blank\nx-key: {value}\n".replace("\t", " "), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="line 2") as raised:
        read_headers(file)

    assert "cret" not in str(raised.value)
