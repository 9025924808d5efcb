"""
An OpenTelemetry collector in this process: OTLP over HTTP, real protobuf, spans as the tests like to look at them.

`answers` is the status of the next posts (200 when it is empty); `headers` are those of the last post. While `stuck` is
set no post is answered.
"""

from __future__ import annotations

import gzip
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2

LONG_S = 20.0


@dataclass(frozen=True)
class Received:
    """One span. Ids are hexadecimal; `parent` is "" for a root; times are Unix nanoseconds."""

    name: str
    kind: str
    trace: str
    id: str
    parent: str
    state: str
    began: int
    ended: int
    error: bool
    attributes: dict[str, Any]
    events: dict[str, int]
    links: list[tuple[str, str]]
    resource: dict[str, Any] = field(repr=False)


class Collector:
    """Listens on a free port of loopback."""

    def __init__(self) -> None:
        self.answers: deque[int] = deque()
        self.headers: dict[str, str] = {}
        self.paths: list[str] = []
        self.stuck = threading.Event()
        self._free = threading.Event()
        self._spans: list[Received] = []
        self._changed = threading.Condition()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                self._answer(collector._post(self.path, dict(self.headers.items()), body))

            def _answer(self, status: int) -> None:
                content = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: Any, client_address: Any) -> None:
                pass  # the exporter left while it waited

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        """The endpoint to configure, without a path."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._free.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def spans(self) -> list[Received]:
        """Everything received so far."""
        with self._changed:
            return list(self._spans)

    def wait(self, count: int) -> list[Received]:
        """All spans, once there are `count`; in the order in which they began."""
        return self.until(lambda spans: len(spans) >= count)

    def until(self, condition: Callable[[list[Received]], bool]) -> list[Received]:
        """All spans, once they are as wanted."""
        with self._changed:
            assert self._changed.wait_for(lambda: condition(self._spans), LONG_S), self._spans
            return sorted(self._spans, key=lambda span: span.began)

    def _post(self, path: str, headers: dict[str, str], body: bytes) -> int:
        if self.stuck.is_set():
            self._free.wait(LONG_S)
        status = self.answers.popleft() if self.answers else 200
        if headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        request = ExportTraceServiceRequest.FromString(body)
        with self._changed:
            self.headers = {name.lower(): value for name, value in headers.items()}
            self.paths.append(path)
            if status == 200:
                self._spans += _spans(request)
            self._changed.notify_all()
        return status


def _spans(request: ExportTraceServiceRequest) -> list[Received]:
    found = []
    for resource in request.resource_spans:
        about = _values(resource.resource.attributes)
        for scope in resource.scope_spans:
            found += [_received(span, about) for span in scope.spans]
    return found


def _received(span: trace_pb2.Span, resource: dict[str, Any]) -> Received:
    return Received(
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_").lower(),
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        state=span.trace_state,
        began=span.start_time_unix_nano,
        ended=span.end_time_unix_nano,
        error=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        attributes=_values(span.attributes),
        events={event.name: event.time_unix_nano for event in span.events},
        links=[(link.trace_id.hex(), link.span_id.hex()) for link in span.links],
        resource=resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {attribute.key: _value(attribute.value) for attribute in attributes}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    return getattr(value, kind) if kind else None
