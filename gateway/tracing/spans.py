"""The spans of a request, made while it runs and ended from its record (`proxy.interfaces.Tracer`)."""

from __future__ import annotations

import time
from collections.abc import Iterable

from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gateway.record import ExchangeRecord
from gateway.tracing import attributes
from gateway.types import Outcome, WorkerView

Headers = list[tuple[bytes, bytes]]

FIRST_TOKEN = "gen_ai.first_token"
_CONTEXT_HEADERS = (b"traceparent", b"tracestate")
_W3C = TraceContextTextMapPropagator()
_NANOSECONDS = 1_000_000_000


class SpanTracer:
    """Begins the traces of requests."""

    def __init__(self, tracer: Tracer, *, trust_incoming: bool) -> None:
        self._tracer = tracer
        self._trust_incoming = trust_incoming

    def request(self, record: ExchangeRecord, method: str, headers: Iterable[tuple[bytes, bytes]]) -> RequestTrace:
        """The trace of a request that has just begun, within the client's own if it has sent one."""
        return RequestTrace(self._tracer, record, method, _incoming(headers), trust=self._trust_incoming)


class RequestTrace:
    """One request's server span. `ended` is called once, after all attempts have ended."""

    __slots__ = ("_began_ns", "_context", "_record", "_span", "_tracer")

    def __init__(self, tracer: Tracer, record: ExchangeRecord, method: str, incoming: Context, *, trust: bool) -> None:
        self._tracer = tracer
        self._record = record
        self._began_ns = time.time_ns()
        caller = get_current_span(incoming).get_span_context()
        self._span = tracer.start_span(
            f"{method} {record.endpoint.value}",
            context=incoming if trust else Context(),
            kind=SpanKind.SERVER,
            attributes=attributes.at_start(record, method),
            links=() if trust or not caller.is_valid else (Link(caller),),
            start_time=self._began_ns,
        )
        self._context = set_span_in_context(self._span, Context())

    def attempt(self, worker: WorkerView) -> AttemptTrace:
        """The trace of an attempt at `worker` that begins now."""
        record = self._record
        span = self._tracer.start_span(
            f"{attributes.OPERATIONS[record.endpoint]} {record.model}",
            context=self._context,
            kind=SpanKind.CLIENT,
            attributes=attributes.of_attempt(record, worker),
        )
        return AttemptTrace(span)

    def ended(self) -> None:
        """The record is complete."""
        record, span = self._record, self._span
        if span.is_recording():
            if record.ttft_s is not None:
                first_token_s = (record.body_s or 0.0) + record.ttft_s
                span.add_event(FIRST_TOKEN, timestamp=self._began_ns + int(first_token_s * _NANOSECONDS))
            span.set_attributes(attributes.at_end(record))
            if record.outcome in attributes.FAULTS:
                span.set_status(StatusCode.ERROR)
        span.end(self._began_ns + int((record.duration_s or 0.0) * _NANOSECONDS))


class AttemptTrace:
    """One attempt's client span. `ended` is called once."""

    __slots__ = ("_span",)

    def __init__(self, span: Span) -> None:
        self._span = span

    def headers(self, headers: Iterable[tuple[bytes, bytes]]) -> Headers:
        """The client's headers with this attempt as the parent of what the worker does."""
        carrier: dict[str, str] = {}
        _W3C.inject(carrier, context=set_span_in_context(self._span, Context()))
        own = [(name.encode("ascii"), value.encode("latin-1")) for name, value in carrier.items()]
        return [(name, value) for name, value in headers if name not in _CONTEXT_HEADERS] + own

    def ended(self, status: int, attempt_id: str, failure: str) -> None:
        """
        The attempt is over.

        Args:
            status: The worker's, 0 if none came.
            attempt_id: By which the worker knows the request.
            failure: A word of a closed set, "" for none.
        """
        span = self._span
        if span.is_recording():
            if status:
                span.set_attribute("http.response.status_code", status)
            if attempt_id:
                span.set_attribute("gateway.upstream_request_id", attempt_id)
            if failure:
                span.set_attribute("error.type", failure)
                if failure != Outcome.CLIENT_CLOSED:
                    span.set_status(StatusCode.ERROR)
        span.end()


def _incoming(headers: Iterable[tuple[bytes, bytes]]) -> Context:
    """The client's context; an empty one when it sent none, or nonsense."""
    parents = [value for name, value in headers if name == b"traceparent"]
    if len(parents) != 1:
        return Context()
    carrier = {"traceparent": parents[0].decode("latin-1")}
    states = [value for name, value in headers if name == b"tracestate"]
    if states:
        carrier["tracestate"] = b",".join(states).decode("latin-1")
    return _W3C.extract(carrier, context=Context())
