"""The server's own figures beside the client's: queue, cache and preemptions, read from the target's /metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from loadtest.http_client import Client, TransportFailure, build_request
from loadtest.result import ServerSample
from loadtest.target import Target, UsageError, parse_target

PERIOD_S = 2.0
ADMIN_PORT = 8001
"""Of a gateway on its defaults."""
SOURCES: Mapping[str, tuple[str, ...]] = {
    "running": ("vllm:num_requests_running",),
    "waiting": ("vllm:num_requests_waiting",),
    "kv_cache_usage": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "preemptions": ("vllm:num_preemptions_total", "vllm:num_preemptions"),
    "prefix_hits": ("vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits"),
    "prefix_queries": ("vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries"),
}
"""Names by field, newest first: those of a vLLM server, which the gateway hands on for each of its workers."""


@dataclass(frozen=True, slots=True)
class Source:
    """One page of metrics."""

    target: Target
    path: str = "/metrics"

    def __str__(self) -> str:
        return f"{self.target.url}{self.path}"


def find_sources(target: Target, model: str, given: str | None) -> tuple[Source, ...]:
    """
    Where the workers' metrics are: at the URL given, or at the target's own /metrics, or listed by the /discovery of a
    gateway's admin port on the same host, for workers of this model. Empty: nowhere.

    Raises:
        UsageError: a URL was given that has none.
    """
    if given is not None:
        base = parse_target(given)
        paths = {base.prefix or "/metrics", f"{base.prefix}/metrics"}
        sources = [Source(replace(base, prefix=""), path) for path in paths]
        found = [source for source in sources if _read(source) is not None] or _discovered(base, None)
        if not found:
            raise UsageError(f"expected vLLM's metrics at {given} (or a gateway's /discovery there), found none")
        return tuple(found[:1] if found[0] in sources else found)
    own = Source(target)
    if _read(own) is not None:
        return (own,)
    return tuple(_discovered(replace(target, port=ADMIN_PORT, tls=False, prefix=""), model))


def sample_of(sources: Sequence[Source], now_s: Callable[[], float]) -> ServerSample | None:
    """One reading over all sources; None where one of them did not answer: a sum without it would be wrong."""
    pages = [_page(source) for source in sources]
    if not pages or None in pages:
        return None
    return read_sample("\n".join(page for page in pages if page is not None), now_s())


def _read(source: Source) -> ServerSample | None:
    page = _page(source)
    return None if page is None else read_sample(page, 0.0)


def _discovered(admin: Target, model: str | None) -> list[Source]:
    """Of one model, since nothing else says that the gateway found there is the one that is asked; None: of all."""
    page = _page(Source(admin, f"{admin.prefix}/discovery"))
    try:
        entries = msgspec.json.decode(page or "[]", type=list[_Discovered])
        hosts = [(parse_target(f"http://{host}"), entry) for entry in entries for host in entry.targets]
    except (msgspec.MsgspecError, UsageError):
        return []
    return [
        Source(target, entry.labels.get("__metrics_path__", "/metrics"))
        for target, entry in hosts
        if model is None or entry.labels.get("model") == model
    ]


def _page(source: Source) -> str | None:
    client = Client(source.target, connect_timeout_s=2.0, read_timeout_s=5.0)
    try:
        answer = client.exchange(build_request("GET", source.path, source.target))
    except TransportFailure:
        return None
    finally:
        client.close()
    return bytes(answer.body).decode(errors="replace") if answer.status == 200 else None


class _Discovered(msgspec.Struct):
    """One entry of Prometheus' HTTP service discovery."""

    targets: list[str]
    labels: dict[str, str] = {}


def read_sample(text: str, at_s: float) -> ServerSample | None:
    """A sample from an exposition; None when it has no queue of a vLLM server in it."""
    values: dict[str, list[float]] = {}
    wanted = {name for names in SOURCES.values() for name in names}
    lines = [line for line in text.splitlines() if line.startswith(tuple(wanted))]
    try:
        families = list(text_string_to_metric_families("\n".join(lines) + "\n"))
    except ValueError:
        return None
    for sample in (sample for family in families for sample in family.samples):
        if sample.name in wanted:
            values.setdefault(sample.name, []).append(sample.value)
    running, waiting = _found(values, "running"), _found(values, "waiting")
    if running is None or waiting is None:
        return None
    usage = _found(values, "kv_cache_usage")
    return ServerSample(
        at_s=at_s,
        running=sum(running),
        waiting=sum(waiting),
        kv_cache_usage=sum(usage) / len(usage) if usage else None,
        preemptions=_total(_found(values, "preemptions")),
        prefix_hits=_total(_found(values, "prefix_hits")),
        prefix_queries=_total(_found(values, "prefix_queries")),
    )


def _found(values: Mapping[str, list[float]], field: str) -> list[float] | None:
    return next((values[name] for name in SOURCES[field] if name in values), None)


def _total(values: Iterable[float] | None) -> float | None:
    return None if values is None else sum(values)
