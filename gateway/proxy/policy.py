"""What is configured for one model, as the relay needs it (frozen; `gateway.app` builds it from the settings)."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """
    Seconds, each limit on its own.

    `first_byte_s` and `first_token_s` count from the moment the request has been handed to the worker's connection,
    `idle_s` between two events of a stream, `total_s` from the end of the client's request body. `stalled_client_s` is
    how long a client may take nothing while its buffer is full, `error_body_s` how long a worker may take over the body
    of an error, `last_words_s` how long a client may take to accept an error.
    """

    connect_s: float = 3.0
    first_byte_s: float = 600.0
    first_token_s: float = 600.0
    idle_s: float = 120.0
    total_s: float = 3600.0
    stalled_client_s: float = 60.0
    error_body_s: float = 5.0
    last_words_s: float = 5.0


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """How requests for one model are treated."""

    limits: TimeLimits = field(default_factory=TimeLimits)
    retries: int = 2
    heartbeat_s: float = 0.0
    default_max_tokens: int | None = None
    max_tokens_limit: int | None = None
    pass_operator_fields: bool = False


@dataclass(frozen=True, slots=True)
class RelayPolicy:
    """
    How this process relays.

    `models` by public name; a model that is not in it gets `fallback`. Body limits in bytes,
    `max_buffered_bytes` for all bodies together; a body may pause for `body_stall_s` and take `body_total_s` in all.
    `direct` is the switch of the fast path. So many bytes of each body go to its record, and from there into the log:
    none, unless prompts are wanted there.
    """

    models: dict[str, ModelPolicy] = field(default_factory=dict)
    fallback: ModelPolicy = field(default_factory=ModelPolicy)
    max_body_bytes: int = 64 * 1024 * 1024
    max_json_depth: int = 200
    max_buffered_bytes: int = 1024 * 1024 * 1024
    logged_body_bytes: int = 0
    body_stall_s: float = 30.0
    body_total_s: float = 300.0
    direct: bool = True

    def of(self, model: str) -> ModelPolicy:
        """The policy of `model`."""
        return self.models.get(model, self.fallback)
