"""
Traces for an OpenTelemetry collector: one server span for each request, one client span for each attempt at a worker.

Only a configuration with `traces.endpoint` imports OpenTelemetry, which is an extra (`vllm-gateway[traces]`): `otlp`
and `spans` are imported by `open_tracing` alone. The relay sees Protocols (`proxy.interfaces.Tracer`), and None while
traces are off.
"""

from gateway.tracing.opening import Tracing, TracingSetup, open_tracing, read_headers, require_usable

__all__ = ["Tracing", "TracingSetup", "open_tracing", "read_headers", "require_usable"]
