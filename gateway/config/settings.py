"""
The schema of the configuration file. Every field says its effect, its default and its hazard; the reference in
`docs/configuration.md` is generated from here.

Units are in the names (`_s` seconds, `_bytes` bytes, `_tokens` tokens). Unknown keys are rejected. Nothing here reads a
file or the environment.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

PositiveSeconds = Annotated[float, Field(gt=0)]
Seconds = Annotated[float, Field(ge=0)]
Price = Annotated[float, Field(ge=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
MAX_PROCESSES = 64
MAX_WORKERS = 512
"""Half of what the board of requests in flight has room for: a reload may replace all workers by others."""


class Section(BaseModel):
    """Base of every section: frozen, unknown keys rejected."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Listen(Section):
    """Where clients connect."""

    host: str = "127.0.0.1"
    """Address to bind. Anything but loopback needs API keys or `allow_anonymous: true`."""
    port: Port = 8000
    """Public port."""


class Admin(Section):
    """Where operators and Prometheus connect: status, worker commands, metrics."""

    host: str = "127.0.0.1"
    """Address to bind; keep it on loopback or behind a firewall. Elsewhere the console's chat box needs API keys to be
    configured, or `allow_anonymous`."""
    port: Port = 8001
    """Admin port."""


class Engine(Section):
    """An environment in which vLLM is installed. The gateway itself never imports vLLM."""

    python: Path | None = None
    """Interpreter of an environment with vLLM installed. Unset: the environment that `gateway` builds and keeps in your
    cache directory."""
    command: list[str] = Field(
        default_factory=lambda: ["{python}", "-m", "vllm.entrypoints.openai.api_server"], min_length=1
    )
    """How a worker is started; the options follow. `{python}` is the interpreter. With `{model}` in it the model is put
    there and `--model` is not added: `["{python}", "-m", "vllm.entrypoints.cli.main", "serve", "{model}"]`."""
    variant: Literal["auto", "cpu", "cuda"] = "auto"
    """Which build of vLLM the gateway installs when `python` is unset; `auto`: by the NVIDIA driver found."""


class StaticWorker(Section):
    """A vLLM server that somebody else starts and stops; the gateway only probes and routes to it."""

    url: str
    """`http://HOST:PORT`, `https://HOST:PORT` or `unix:///path/to.sock`, optionally with a path prefix."""
    api_key: SecretStr | None = None
    """Sent to this worker as `Authorization: Bearer`. Prefer `api_key_file`: configuration gets copied around."""
    api_key_file: Path | None = None
    """File whose first line is the key."""
    tls_ca_file: Path | None = None
    """PEM file with the certificate authority that signed the worker's certificate. Unset: the system's."""
    tls_verify: bool = True
    """`false` accepts any certificate: only for a network you trust."""

    @model_validator(mode="after")
    def _one_key(self) -> StaticWorker:
        if self.api_key is not None and self.api_key_file is not None:
            raise ValueError("set api_key or api_key_file, not both")
        return self


class Launch(Section):
    """
    How a worker of this model is started. Unset options are left to vLLM.
    """

    tensor_parallel_size: Annotated[int, Field(ge=1)] = 1
    """GPUs one worker spans. Must divide the model's attention heads."""
    gpus: list[int] | None = None
    """Exact GPU indices (PCI bus order) that the replicas share out in order; unset: assigned by the supervisor, which
    also replaces a GPU that fails."""
    mig_devices: list[str] | None = None
    """UUIDs of MIG slices (`MIG-...`), one worker on each in order, instead of whole GPUs; `tensor_parallel_size` must
    be 1. The only way in which slices are used."""
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] | None = None
    """Fraction of the GPU's total memory vLLM reserves at start. Too high: out of memory; too low: small KV cache."""
    kv_cache_memory_bytes: int | str | None = None
    """Exact size of the KV cache (`2G`, `512M`), not a fraction: the safe choice for several workers on one GPU."""
    max_model_len: int | None = None
    """Longest prompt plus answer in tokens. Lower it when the KV cache does not fit."""
    max_num_seqs: Annotated[int, Field(ge=1)] | None = None
    """Requests decoded together. Higher: more throughput, worse inter-token latency, more preemption."""
    max_num_batched_tokens: Annotated[int, Field(ge=1)] | None = None
    """Tokens per engine step. Higher: better time to first token, worse inter-token latency."""
    enable_prefix_caching: bool | None = None
    """Reuse the KV cache of equal prompt beginnings. vLLM turns it on where it can."""
    dtype: str | None = None
    """Weights' data type, such as `bfloat16`."""
    quantization: str | None = None
    """Quantisation method, such as `fp8` or `awq`; usually found in the model's own configuration."""
    kv_cache_dtype: str | None = None
    """Data type of the KV cache, such as `fp8`."""
    load_format: str | None = None
    """`dummy` starts with random weights and needs no weight files."""
    enforce_eager: bool | None = None
    """Skip compilation and CUDA graphs: faster start, slower decoding."""
    enable_lora: bool | None = None
    """Serve LoRA adapters."""
    lora_modules: dict[str, str] = Field(default_factory=dict)
    """Adapters by public name: folder or hub id."""
    speculative_config: dict[str, object] | None = None
    """vLLM's speculative decoding settings, passed as JSON."""
    trust_remote_code: bool = False
    """Run Python code that the model's repository brings. Hazard: it runs with your rights."""
    transport: Literal["tcp", "uds"] = "tcp"
    """`uds` talks to the worker over a Unix socket: a few microseconds less per message."""
    extra_args: list[str] = Field(default_factory=list)
    """Given to vLLM verbatim, after everything else."""
    env: dict[str, str] = Field(default_factory=dict)
    """Extra environment variables of the worker."""
    start_timeout_s: PositiveSeconds = 1800
    """A start that has not finished by then, and makes no progress any more, is killed; after four times as long in any
    case."""
    cpu_kv_cache_gib: Annotated[int, Field(ge=1)] = 1
    """KV cache per worker in GiB when the engine runs on the CPU."""

    @model_validator(mode="after")
    def _slices(self) -> Launch:
        if self.mig_devices is not None:
            if self.gpus is not None or self.tensor_parallel_size > 1:
                raise ValueError("mig_devices goes without gpus and with tensor_parallel_size: 1")
            if not self.mig_devices or not all(device.startswith("MIG-") for device in self.mig_devices):
                raise ValueError("mig_devices wants UUIDs that begin with MIG- (nvidia-smi -L lists them)")
        return self


class Timeouts(Section):
    """Time limits of one request, each on its own."""

    connect_s: PositiveSeconds = 3
    """Connecting to a worker on this host or network. Then the next worker is tried."""
    first_byte_s: PositiveSeconds = 600
    """From the request's last byte to the worker's response headers (a non-streamed answer sends them at its end)."""
    first_token_s: PositiveSeconds = 600
    """From the request's last byte to the first event that carries a token (streams only)."""
    idle_s: PositiveSeconds = 120
    """Between two events of a stream. A preempted request may be silent for seconds."""
    total_s: PositiveSeconds = 3600
    """The whole exchange."""


class Model(Section):
    """One public model: where its workers come from and how requests for it are treated. The key is the public name."""

    model: str | None = None
    """Hub id or folder given to vLLM; `embedded` is SmolLM2-135M-Instruct. Unset only when every worker is static."""
    aliases: list[str] = Field(default_factory=list)
    """Further names clients may use. The answer carries the name of the model."""
    replicas: Annotated[int, Field(ge=0)] = 1
    """Workers to launch."""
    engine: str = "default"
    """Which entry of `engines` runs it."""
    launch: Launch = Launch()
    """Options of the launched workers."""
    workers: list[StaticWorker] = Field(default_factory=list)
    """Workers that somebody else runs."""
    timeouts: Timeouts = Timeouts()
    """Time limits of one request."""
    max_in_flight: Annotated[int, Field(ge=1)] | None = None
    """Requests each worker of the model may have at a time, from all gateway processes together; more wait in the
    gateway's queue, first come first served. Unset: no limit, and vLLM queues by itself. A good first value is one to
    two times `launch.max_num_seqs`: lower leaves the engine idle between requests."""
    max_queued: Annotated[int, Field(ge=0)] = 1000
    """Requests that may wait for a worker of the model; each gateway process takes its share. One more gets 429 at
    once, with a `Retry-After` from the rate at which requests end. A waiting request keeps its body in memory."""
    queue_timeout_s: PositiveSeconds = 60
    """Longest wait while all workers are busy; then 429. Longer than clients wait is of no use to anybody."""
    retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Further attempts on other workers, only before the first byte of an answer."""
    default_max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Written into requests that set no limit. Unset: vLLM decides (chat: all that is left of the context)."""
    max_tokens_limit: Annotated[int, Field(ge=1)] | None = None
    """A request that asks for more gets this many."""
    sse_heartbeat_s: Seconds = 0
    """Comment line sent into an event stream after so much silence; 0: never. Once the first is sent, failures are
    reported inside the stream."""
    pass_operator_fields: bool = False
    """Forward `priority`, `request_id`, `kv_transfer_params`, `ec_transfer_params` and `cache_salt` from clients. They
    influence other tenants' requests, so they are stripped by default."""
    price_per_gpu_hour: Price | None = None
    """What one GPU costs per hour, in any currency; a worker costs so much times `tensor_parallel_size` while it has a
    process (`gateway_worker_cost_total`). It is counted in full for each of several workers that share a GPU."""
    price_per_worker_hour: Price | None = None
    """What one worker costs per hour, whatever it runs on: for CPU and static workers, or slices of a GPU. It replaces
    `price_per_gpu_hour`."""

    @model_validator(mode="after")
    def _some_worker(self) -> Model:
        if self.model is None and not self.workers:
            raise ValueError("set model (to launch workers) or workers (to use running ones)")
        return self

    @property
    def launched(self) -> int:
        """Workers the supervisor launches for this model."""
        return self.replicas if self.model is not None else 0


class Watch(Section):
    """How the supervisor watches and restarts workers."""

    probe_interval_s: PositiveSeconds = 5
    """Between two health probes of a worker."""
    probe_timeout_s: PositiveSeconds = 10
    """A probe that takes longer counts as a miss. A busy worker is slow, not dead: keep it generous."""
    probe_misses: Annotated[int, Field(ge=1)] = 3
    """Misses in a row before a worker is taken for unhealthy."""
    hang_idle_s: PositiveSeconds = 60
    """Requests in flight, no byte and no engine step for so long: the worker is tested, then replaced."""
    backoff_initial_s: PositiveSeconds = 1
    """Pause before the first restart; doubles up to `backoff_max_s`, with jitter."""
    backoff_max_s: PositiveSeconds = 60
    """Longest pause between restarts."""
    stable_after_s: PositiveSeconds = 300
    """A worker that served so long starts again with the first pause."""
    max_fast_failures: Annotated[int, Field(ge=1)] = 5
    """Failed starts in a row after which a worker is given up as FAILED (`gateway workers start NAME` tries again)."""


class Limits(Section):
    """What one request may cost."""

    max_body_bytes: Annotated[int, Field(ge=1024)] = 64 * 1024 * 1024
    """Larger request bodies get 413."""
    max_buffered_bytes: Annotated[int, Field(ge=1024 * 1024)] = 1024 * 1024 * 1024
    """Request bodies over 64 KiB that are held at a time, waiting requests included; each gateway process takes its
    share, but at least one body of the largest size. One more gets 429 before it is read. Joining, decompressing and
    rewriting take up to three times as much memory for moments."""
    max_json_depth: Annotated[int, Field(ge=8, le=1000)] = 200
    """Deeper nesting gets 400."""


class Cors(Section):
    """Browser clients."""

    allow_origins: list[str] = Field(default_factory=list)
    """Origins that may call from a browser; `*` for any. Empty: no CORS headers."""


class Logging(Section):
    """The log on standard error."""

    format: Literal["auto", "json", "text"] = "auto"
    """`auto`: text on a terminal, JSON otherwise."""
    requests: bool = True
    """One line for every request, without its content."""
    bodies: bool = False
    """Adds the request's body, prompts and all, to its line. Hazard: whoever reads the log reads what your users write;
    a warning at the start says so."""
    max_body_bytes: Annotated[int, Field(ge=1, le=1024 * 1024)] = 4096
    """So much of each body with `bodies`; the rest is cut off."""


class Traces(Section):
    """Spans of requests and attempts, for an OpenTelemetry collector. Needs `pip install 'vllm-gateway[traces]'`."""

    endpoint: str | None = None
    """Of the collector, OTLP over HTTP: `http://HOST:4318`, with a path only where it is not `/v1/traces`. Unset: no
    traces, at no cost."""
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0
    """Of the requests that bring no trace context, so many are traced. One that brings it is traced iff it says so."""
    trust_incoming: bool = True
    """Continue the traces of clients. `false` for clients you do not know, who could otherwise have every request
    traced: theirs are linked, and `sample_ratio` decides."""
    headers_file: Path | None = None
    """File with headers for the collector, one `Name: value` a line, such as its key."""


class Settings(Section):
    """The whole configuration file."""

    listen: Listen = Listen()
    """Where clients connect."""
    admin: Admin = Admin()
    """Where operators connect."""
    allow_anonymous: bool = False
    """Serve without API keys on an address other than loopback. Where keys exist they are required all the same."""
    public_metrics: bool = False
    """Serve `/metrics` on the public port too."""
    models: Annotated[dict[str, Model], Field(min_length=1)]
    """Public models by name."""
    engines: dict[str, Engine] = Field(default_factory=lambda: {"default": Engine()})
    """Engine environments by name."""
    watch: Watch = Watch()
    """Watching and restarting workers."""
    limits: Limits = Limits()
    """Limits of one request."""
    cors: Cors = Cors()
    """Browser clients."""
    logging: Logging = Logging()
    """The log."""
    traces: Traces = Traces()
    """Traces."""
    processes: Annotated[int, Field(ge=1, le=MAX_PROCESSES)] = 1
    """Gateway processes that share the public port, each with an event loop of its own. One relays some 20,000 events
    a second; raise it when one of them uses a whole core (`docs/processes.md`)."""
    compiled: bool = True
    """Gateway processes run the compiled form of their hot modules where it has been built, which `make` does. Switch
    it off to look at the sources with a profiler or a debugger; a request then costs 1.7 times as much."""
    drain_timeout_s: Seconds = 25
    """On stop, running requests get so long to finish."""

    @field_validator("models")
    @classmethod
    def _names(cls, models: dict[str, Model]) -> dict[str, Model]:
        seen: dict[str, str] = {}
        for name, model in models.items():
            for alias in (name, *model.aliases):
                if not alias or len(alias) > 256 or not alias.isprintable():
                    raise ValueError(f"model name {alias!r} must be 1 to 256 printable characters")
                if alias in seen:
                    raise ValueError(f"{alias!r} names both {seen[alias]!r} and {name!r}")
                seen[alias] = name
        return models

    @model_validator(mode="after")
    def _not_too_many(self) -> Settings:
        workers = sum(model.launched + len(model.workers) for model in self.models.values())
        if workers > MAX_WORKERS:
            raise ValueError(f"models: {workers} workers in all, launched and static; there may be {MAX_WORKERS}")
        return self

    @model_validator(mode="after")
    def _engines_exist(self) -> Settings:
        for name, model in self.models.items():
            if model.launched and model.engine not in self.engines and model.engine != "default":
                known = ", ".join(sorted(self.engines))
                raise ValueError(f"models.{name}.engine: {model.engine!r} is not one of engines ({known})")
        return self
