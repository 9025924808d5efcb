"""
The vocabulary every package shares: closed sets of words and frozen views of the fleet.

Nothing here does I/O or knows the time. The enumerations are also the closed sets of metric label values, so a
new member is a change of the public interface (README, metrics table).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class WorkerState(StrEnum):
    """Where a worker is in its life. Only the worker's own task changes it (ARCHITECTURE.md, invariant 7)."""

    STOPPED = "stopped"
    STARTING = "starting"
    READY = "ready"
    UNHEALTHY = "unhealthy"
    DRAINING = "draining"
    STOPPING = "stopping"
    BACKOFF = "backoff"
    FAILED = "failed"


class Outcome(StrEnum):
    """How one exchange ended; the `outcome` label of `gateway_requests_total`."""

    OK = "ok"
    CLIENT_ERROR = "client_error"
    REJECTED = "rejected"
    NO_WORKER = "no_worker"
    UPSTREAM_CONNECT = "upstream_connect"
    UPSTREAM_ERROR = "upstream_error"
    UPSTREAM_TIMEOUT = "upstream_timeout"
    UPSTREAM_INCOMPLETE = "upstream_incomplete"
    CLIENT_CLOSED = "client_closed"
    SHUTDOWN = "shutdown"
    INTERNAL = "internal"


class Phase(StrEnum):
    """What an exchange was doing; the `phase` label of `gateway_disconnects_total`."""

    BODY = "body"
    QUEUED = "queued"
    CONNECTING = "connecting"
    HEADERS = "headers"
    FIRST_EVENT = "first_event"
    STREAMING = "streaming"
    BACKOFF = "backoff"


class RetryReason(StrEnum):
    """Why an exchange moved to another attempt; the `reason` label of `gateway_retries_total`."""

    CONNECT = "connect"
    STALE_CONNECTION = "stale_connection"
    CONNECTION_LOST = "connection_lost"
    STATUS_5XX = "status_5xx"
    DRAINING_ENGINE = "draining_engine"
    IN_BAND_ERROR = "in_band_error"


class Stage(StrEnum):
    """Where the gateway itself spends time; the `stage` label of `gateway_overhead_seconds`."""

    PARSE = "parse"
    ADMISSION = "admission"
    ROUTING = "routing"
    CONNECT = "connect"
    RELAY = "relay"


class Family(StrEnum):
    """An API family: it decides the error envelope, the stream grammar and the terminal marker."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    RESPONSES = "responses"
    MESSAGES = "messages"
    PLAIN = "plain"


class Endpoint(StrEnum):
    """The inference routes; the `endpoint` label. The value is the canonical public path."""

    CHAT_COMPLETIONS = "/v1/chat/completions"
    COMPLETIONS = "/v1/completions"
    RESPONSES = "/v1/responses"
    MESSAGES = "/v1/messages"
    COUNT_TOKENS = "/v1/messages/count_tokens"
    EMBEDDINGS = "/v1/embeddings"
    SCORE = "/v1/score"
    RERANK = "/v1/rerank"
    AUDIO = "/v1/audio"
    TOKENIZE = "/tokenize"
    DETOKENIZE = "/detokenize"


@dataclass(frozen=True, slots=True)
class WorkerAddress:
    """
    Where a worker listens: TCP (`host`, `port`) or a Unix socket (`uds`), optionally behind TLS.

    `base_path` is prefixed to every request path (static workers behind a path prefix); "" for our own.
    """

    host: str = ""
    port: int = 0
    uds: str | None = None
    tls: bool = False
    tls_ca_file: str | None = None
    tls_verify: bool = True
    base_path: str = ""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """
    One worker as a gateway process sees it.

    `launch_id` changes whenever the process behind the address is replaced: connections, breakers and load counts of
    another launch are worthless. `changed_at_s` is CLOCK_MONOTONIC seconds, comparable between processes of one host.
    `was_ready_at_s` is the last time it was READY, None if never. `column` is this launch's in the in-flight board that
    all gateway processes share, -1 for none.
    """

    name: str
    model: str
    state: WorkerState
    launch_id: str
    address: WorkerAddress
    changed_at_s: float
    was_ready_at_s: float | None = None
    api_key: str | None = field(default=None, repr=False)
    max_model_len: int | None = None
    column: int = -1


@dataclass(frozen=True, slots=True)
class ModelView:
    """
    One public model name with its aliases; `created` is Unix seconds (for `/v1/models`). `max_in_flight` is the limit
    that is in force for each of its workers, 0 for none; -1: not told, each process goes by its own settings.
    """

    name: str
    aliases: tuple[str, ...]
    created: int
    max_model_len: int | None = None
    max_in_flight: int = -1


@dataclass(frozen=True, slots=True)
class FleetSnapshot:
    """
    Everything a gateway process knows of the fleet, replaced as a whole.

    `version` grows with every change; a snapshot with a lower one than the current is ignored.
    """

    version: int
    models: tuple[ModelView, ...]
    workers: tuple[WorkerView, ...]
    draining: bool = False


class Policy(StrEnum):
    """How a worker is chosen; the `policy` label of `gateway_routing_decisions_total`."""

    LEAST_LOADED = "least_loaded"
    ROUND_ROBIN = "round_robin"


class DecisionReason(StrEnum):
    """Why the chosen worker won; the `reason` label of `gateway_routing_decisions_total`."""

    ONLY = "only"
    """No other worker could serve."""
    BEST_SCORE = "best_score"
    """It alone had the highest score."""
    TIE = "tie"
    """Several had the highest score; it had waited longest for its turn."""
    FAIL_OPEN = "fail_open"
    """Every worker's circuit was open, and a worker that may fail is better than none."""


class Outlook(StrEnum):
    """What a request may hope for that gets no worker at once."""

    BUSY = "busy"
    """Some worker could serve, and has as many requests as it may."""
    COMING = "coming"
    """None is READY, and one is on its way."""
    NONE = "none"
    """None, and none is coming."""


class CircuitState(StrEnum):
    """What a gateway process's circuit breaker says of a worker."""

    CLOSED = "closed"
    HALF_OPEN = "half_open"
    OPEN = "open"


class RejectionReason(StrEnum):
    """Why load was turned away; the `reason` label of `gateway_rejections_total`."""

    QUEUE_FULL = "queue_full"
    QUEUE_TIMEOUT = "queue_timeout"
    TENANT_LIMIT = "tenant_limit"
    RATE_LIMITED = "rate_limited"
    BODY_MEMORY = "body_memory"
    SHUTTING_DOWN = "shutting_down"
