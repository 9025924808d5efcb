"""The URL of a static worker, taken apart."""

from __future__ import annotations

from urllib.parse import urlsplit

from gateway.config.settings import StaticWorker
from gateway.errors import ConfigurationError
from gateway.types import WorkerAddress

_EXPECTED = "expected http://HOST:PORT, https://HOST:PORT or unix:///path/to.sock"
_DEFAULT_PORTS = {"http": 80, "https": 443}


def static_address(worker: StaticWorker) -> WorkerAddress:
    """
    Where a static worker listens. A path prefix follows the host (`http://h:1/p`), or `.sock` (`unix:///a/b.sock/p`).

    Raises:
        ConfigurationError: the URL has another form.
    """
    try:
        parts = urlsplit(worker.url)
        port = parts.port
    except ValueError as exc:
        raise ConfigurationError(f"{_EXPECTED}, found {worker.url!r} ({exc})", key="workers.url") from exc
    if parts.query or parts.fragment or parts.username or parts.password:
        raise ConfigurationError(
            f"{_EXPECTED} without user, query and fragment; a key belongs in api_key_file", key="workers.url"
        )
    if parts.scheme == "unix" and not parts.netloc and parts.path.startswith("/"):
        socket, suffix, prefix = parts.path.partition(".sock")
        if not suffix and prefix == "":
            return WorkerAddress(uds=parts.path)
        return WorkerAddress(uds=socket + suffix, base_path=prefix.rstrip("/"))
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname:
        raise ConfigurationError(f"{_EXPECTED}, found {worker.url!r}", key="workers.url")
    return WorkerAddress(
        host=parts.hostname,
        port=port or _DEFAULT_PORTS[parts.scheme],
        tls=parts.scheme == "https",
        tls_ca_file=str(worker.tls_ca_file) if worker.tls_ca_file else None,
        tls_verify=worker.tls_verify,
        base_path=parts.path.rstrip("/"),
    )
