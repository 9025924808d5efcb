"""
OpenTelemetry's SDK put together: sampling, batches in a thread of their own, OTLP over HTTP.

A collector that is slow, down or wrong costs spans, which are counted, and an error in the log; never a request.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

import requests
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from gateway.tracing.opening import TracingSetup
from gateway.tracing.spans import SpanTracer

SERVICE = "vllm-gateway"
MAX_WAITING = 4096
"""Spans that wait for the collector; further ones are dropped."""
BATCH = 32
"""Small: encoding takes 50 µs a span, and the event loop waits while the thread that does it has its turn."""
CLOSE_S = 2.0


class OtlpTracing:
    """Traces of one process (`Tracing`)."""

    def __init__(self, setup: TracingSetup) -> None:
        # Further tries and full queues are warnings of the SDK; what is lost in the end is its error, and our counter.
        logging.getLogger("opentelemetry").setLevel(logging.ERROR)
        session = requests.Session()
        session.trust_env = False  # neither a proxy nor .netrc: the collector is where the configuration says
        exporter = OTLPSpanExporter(
            endpoint=setup.url,
            headers=dict(setup.headers),
            timeout=setup.give_up_s,
            compression=Compression.NoCompression,
            session=session,
        )
        self._spans = CountedBatches(exporter, setup.send_every_s)
        resource = {"service.name": SERVICE, "service.version": setup.version, "service.instance.id": setup.instance}
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(setup.sample_ratio)),
            resource=Resource({key: value for key, value in resource.items() if value}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(self._spans)
        self.tracer = SpanTracer(self._provider.get_tracer(SERVICE, setup.version), trust_incoming=setup.trust_incoming)

    @property
    def dropped(self) -> int:
        """See `Tracing`."""
        return self._spans.dropped

    def close(self) -> None:
        """See `Tracing`. The SDK itself would wait half a minute for a collector that is down."""
        closing = threading.Thread(target=self._provider.shutdown, name="traces-close", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


class CountedBatches(SpanProcessor):
    """The SDK's batches, with a count of what is lost: by a full queue here, by a failed export in the exporter."""

    def __init__(self, exporter: SpanExporter, send_every_s: float = 1.0) -> None:
        self._exporter = CountingExporter(exporter)
        self._batches = BatchSpanProcessor(
            self._exporter,
            max_queue_size=MAX_WAITING,
            schedule_delay_millis=send_every_s * 1000,
            max_export_batch_size=BATCH,
        )
        self._ended = 0
        self._overflowed = 0

    @property
    def dropped(self) -> int:
        """Spans lost so far."""
        return self._overflowed + self._exporter.failed

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """See `SpanProcessor`."""

    def on_end(self, span: ReadableSpan) -> None:
        """See `SpanProcessor`. A full queue loses its oldest span."""
        self._ended += 1
        if self._ended - self._overflowed - self._exporter.taken > MAX_WAITING:
            self._overflowed += 1
        self._batches.on_end(span)

    def shutdown(self) -> None:
        """See `SpanProcessor`."""
        self._batches.shutdown()  # type: ignore[no-untyped-call]  # the SDK's own omission

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanProcessor`."""
        return self._batches.force_flush(timeout_millis)


class CountingExporter(SpanExporter):
    """Passes batches on. `taken` spans were handed to it, `failed` of them did not arrive."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self.taken = 0
        self.failed = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        self.taken += len(spans)
        try:
            result = self._exporter.export(spans)
        except Exception:
            # Text that cannot be encoded, a header that cannot be sent: the SDK logs it.
            self.failed += len(spans)
            raise
        if result is not SpanExportResult.SUCCESS:
            self.failed += len(spans)
        return result

    def shutdown(self) -> None:
        """See `SpanExporter`."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """See `SpanExporter`."""
        return self._exporter.force_flush(timeout_millis)
