"""
What a configuration must mean, beyond the types: pure functions from the file's data to findings.

They look at the data and not at the validated settings, so that a wrong type in one place hides nothing elsewhere; what
has the wrong type is skipped here, because the schema reports it. What is on disk is asked through `Files`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Protocol, TypeGuard

from gateway.config.document import Finding, Path, dotted
from gateway.config.urls import url_problem

Section = Mapping[str, object]

GATEWAYS_OWN_OPTIONS = ("--model", "--served-model-name", "--host", "--port", "--uds", "--api-key", "--root-path")
"""Options of vLLM that the gateway sets itself; a second value would take the worker away from it."""

_SIZE = re.compile(r"\d+(\.\d+)?[kmgt]|\d+[KMGT]?")
_ORIGIN = re.compile(r"https?://[^/\s?#@]+")
_COLLECTOR = re.compile(r"https?://[^\s?#@]+")
_WILDCARDS = ("0.0.0.0", "::", "")


class Files(Protocol):
    """What the checks may ask about the disk."""

    def unreadable(self, path: str) -> str | None:
        """Why a file cannot be read (or is empty), None when it can."""
        ...

    def not_certificates(self, path: str) -> str | None:
        """Why a readable file cannot serve as a certificate authority, None when it can."""
        ...

    def not_executable(self, path: str) -> str | None:
        """Why a program cannot be run, None when it can."""
        ...

    def is_folder(self, path: str) -> bool: ...


def check(data: Section, files: Files) -> list[Finding]:
    """All findings, in the order of the file's sections."""
    return [finding for rule in _RULES for finding in rule(data, files)]


def _ports(data: Section, files: Files) -> Iterator[Finding]:
    listen, admin = _section(data, "listen"), _section(data, "admin")
    port = listen.get("port", 8000)
    if port != admin.get("port", 8001):
        return
    hosts = {str(one.get("host", "127.0.0.1")) for one in (listen, admin)}
    if len(hosts) == 1 or hosts & set(_WILDCARDS):
        # The line of the one that was written.
        path: Path = ("admin", "port") if "port" in admin else ("listen", "port")
        yield Finding(path, f"listen.port and admin.port are both {port}; they must differ")


def _names(data: Section, files: Files) -> Iterator[Finding]:
    taken: dict[str, Path] = {}
    worker_names: dict[str, str] = {}
    for name, model in _models(data):
        path: Path = ("models", name)
        names: list[tuple[str, Path]] = [(name, path)]
        names += [(alias, (*path, "aliases", index)) for index, alias in _texts(model, "aliases")]
        adapters = _section(_section(model, "launch"), "lora_modules")
        names += [(adapter, (*path, "launch", "lora_modules", adapter)) for adapter in adapters]
        for one, place in names:
            if not one or len(one) > 256 or not one.isprintable():
                yield Finding(place, f"expected a model name of 1 to 256 printable characters, found {one[:40]!r}")
            elif one in taken:
                yield Finding(place, f"{one!r} is already the name of {dotted(taken[one])}; names must differ")
            else:
                taken[one] = place
        plain = re.sub(r"[^A-Za-z0-9._]", "-", name)
        if plain in worker_names:
            other = worker_names[plain]
            yield Finding(path, f"its workers would have the same names as those of {other!r} ({plain}-0); rename one")
        worker_names[plain] = name


def _sources(data: Section, files: Files) -> Iterator[Finding]:
    for name, model in _models(data):
        path: Path = ("models", name)
        source = model.get("model")
        if source is None:
            if not model.get("workers"):
                yield Finding(path, "set model (to launch workers) or workers (to use running ones)")
            elif "launch" in model:
                yield Finding((*path, "launch"), "has no effect without model: nothing is launched")
        elif isinstance(source, str):
            if not source.strip():
                yield Finding((*path, "model"), "expected a hub id or a folder, found an empty text")
            elif source.startswith(("/", "./", "../")) and not files.is_folder(source):
                yield Finding((*path, "model"), f"expected a folder with a model, found none at {source}")
            elif source.startswith("~"):
                yield Finding((*path, "model"), f"`~` is not expanded; write the folder out instead of {source}")


def _engines(data: Section, files: Files) -> Iterator[Finding]:
    engines = _section(data, "engines")
    known = {"default", *engines}
    for name, model in _models(data):
        wanted = model.get("engine")
        if isinstance(wanted, str) and wanted not in known:
            message = f"{wanted!r} is not one of engines ({', '.join(sorted(known))})"
            yield Finding(("models", name, "engine"), message)
    for name in engines:
        engine = _section(engines, name)
        python = engine.get("python")
        if isinstance(python, str) and (why := files.not_executable(python)) is not None:
            message = f"expected a Python interpreter that has vLLM, found that {python} {why}"
            message += "; set it (or ENGINE_PYTHON=, --engine-python) to one, or leave it out to have vLLM installed"
            yield Finding(("engines", name, "python"), message)


def _static_workers(data: Section, files: Files) -> Iterator[Finding]:
    for name, model in _models(data):
        seen: dict[str, int] = {}
        for index, worker in _sections(model, "workers"):
            path: Path = ("models", name, "workers", index)
            url = worker.get("url")
            if isinstance(url, str):
                if (problem := url_problem(url)) is not None:
                    yield Finding((*path, "url"), problem)
                elif url in seen:
                    yield Finding((*path, "url"), f"the same worker as workers[{seen[url]}]; list it once")
                seen.setdefault(url, index)
                if not url.startswith("https://"):
                    for key in ("tls_ca_file", "tls_verify"):
                        if key in worker:
                            yield Finding((*path, key), f"has an effect only with https, found {url[:60]}")
            if worker.get("api_key") is not None and worker.get("api_key_file") is not None:
                yield Finding((*path, "api_key"), "set api_key or api_key_file, not both")
            for key in ("api_key_file", "tls_ca_file"):
                file = worker.get(key)
                if isinstance(file, str) and (why := files.unreadable(file)) is not None:
                    yield Finding((*path, key), f"expected a readable file, found that {file} {why}")
                elif isinstance(file, str) and key == "tls_ca_file" and (why := files.not_certificates(file)):
                    yield Finding((*path, key), f"expected certificates in PEM form, found that {file} {why}")


def _launch(data: Section, files: Files) -> Iterator[Finding]:
    for name, model in _models(data):
        launch = _section(model, "launch")
        path: Path = ("models", name, "launch")
        yield from _launch_sizes(launch, path)
        for index, argument in _texts(launch, "extra_args"):
            option = argument.split("=", 1)[0].replace("_", "-")
            if option in GATEWAYS_OWN_OPTIONS:
                yield Finding((*path, "extra_args", index), f"{option} is set by the gateway; remove it")
        for variable in _section(launch, "env"):
            if not variable or "=" in variable or "\0" in variable:
                yield Finding((*path, "env", variable), f"expected the name of a variable, found {variable[:40]!r}")
            elif variable == "CUDA_VISIBLE_DEVICES":
                yield Finding((*path, "env", variable), f"set {dotted((*path, 'gpus'))} instead")
        if _section(launch, "lora_modules") and launch.get("enable_lora") is False:
            yield Finding((*path, "enable_lora"), "lora_modules are given, so it cannot be false")


def _launch_sizes(launch: Section, path: Path) -> Iterator[Finding]:
    size = launch.get("kv_cache_memory_bytes")
    if isinstance(size, str) and not _SIZE.fullmatch(size):
        message = f"expected bytes such as 2G, 512M or 1.5g (K, M, G, T: 1024; k, m, g, t: 1000), found {size[:40]!r}"
        yield Finding((*path, "kv_cache_memory_bytes"), message)
    elif isinstance(size, int) and not isinstance(size, bool) and size <= 0:
        yield Finding((*path, "kv_cache_memory_bytes"), f"expected a positive number of bytes, found {size}")
    length = launch.get("max_model_len")
    if _is_number(length) and length < 1 and length != -1:
        yield Finding((*path, "max_model_len"), f"expected at least 1 (or -1: as long as fits), found {length}")
    gpus = launch.get("gpus")
    if isinstance(gpus, list):
        for index, gpu in enumerate(gpus):
            if _is_number(gpu) and gpu < 0:
                yield Finding((*path, "gpus", index), f"expected the index of a GPU, 0 or more, found {gpu}")
        spans = launch.get("tensor_parallel_size", 1)
        if _is_number(spans) and len(gpus) < spans:
            yield Finding((*path, "gpus"), f"expected at least {spans} (tensor_parallel_size), found {len(gpus)}")


def _limits(data: Section, files: Files) -> Iterator[Finding]:
    watch = _section(data, "watch")
    yield from _ordered(watch, ("watch",), "backoff_initial_s", 1, "backoff_max_s", 60)
    for name, model in _models(data):
        path: Path = ("models", name)
        default, limit = model.get("default_max_tokens"), model.get("max_tokens_limit")
        if _is_number(default) and _is_number(limit) and default > limit:
            message = f"is {default}, more than max_tokens_limit ({limit})"
            yield Finding((*path, "default_max_tokens"), message)
        timeouts = _section(model, "timeouts")
        defaults = {"connect_s": 3.0, "first_byte_s": 600.0, "first_token_s": 600.0, "idle_s": 120.0}
        for key, fallback in defaults.items():
            # A total below the default of another limit is meant; only two written values can contradict.
            if key in timeouts:
                yield from _ordered(timeouts, (*path, "timeouts"), key, fallback, "total_s", 3600)


def _origins(data: Section, files: Files) -> Iterator[Finding]:
    for index, origin in _texts(_section(data, "cors"), "allow_origins"):
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            message = f"expected `*` or an origin such as https://chat.example.org (no path), found {origin[:60]!r}"
            yield Finding(("cors", "allow_origins", index), message)


def _traces(data: Section, files: Files) -> Iterator[Finding]:
    traces = _section(data, "traces")
    endpoint = traces.get("endpoint")
    if isinstance(endpoint, str) and not _COLLECTOR.fullmatch(endpoint):
        message = f"expected the URL of an OTLP collector such as http://127.0.0.1:4318, found {endpoint[:60]!r}"
        yield Finding(("traces", "endpoint"), message)
    file = traces.get("headers_file")
    if isinstance(file, str) and (why := files.unreadable(file)) is not None:
        yield Finding(("traces", "headers_file"), f"expected a readable file, found that {file} {why}")
    if endpoint is None and traces:
        yield Finding(("traces", next(iter(traces))), "has no effect without traces.endpoint")


_RULES: tuple[Callable[[Section, Files], Iterator[Finding]], ...] = (
    _ports,
    _names,
    _sources,
    _engines,
    _static_workers,
    _launch,
    _limits,
    _origins,
    _traces,
)


def _ordered(
    section: Section, path: Path, small: str, small_default: float, large: str, large_default: float
) -> Iterator[Finding]:
    low, high = section.get(small, small_default), section.get(large, large_default)
    if _is_number(low) and _is_number(high) and low > high:
        yield Finding(
            (*path, small if small in section else large), f"{small} is {low:g}, more than {large} ({high:g})"
        )


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _section(data: Section, key: str) -> Section:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}


def _models(data: Section) -> Iterator[tuple[str, Section]]:
    models = _section(data, "models")
    for name in models:
        if isinstance(models[name], Mapping):
            yield name, _section(models, name)


def _sections(data: Section, key: str) -> Iterator[tuple[int, Section]]:
    values = data.get(key)
    if isinstance(values, list):
        yield from ((index, value) for index, value in enumerate(values) if isinstance(value, Mapping))


def _texts(data: Section, key: str) -> Iterator[tuple[int, str]]:
    values = data.get(key)
    if isinstance(values, list):
        yield from ((index, value) for index, value in enumerate(values) if isinstance(value, str))
