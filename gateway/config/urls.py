"""The grammar of a static worker's URL."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

EXPECTED = "expected http://HOST:PORT, https://HOST:PORT or unix:///path/to.sock"
MAX_SOCKET_PATH_BYTES = 107
"""What fits into a Unix socket address."""


def url_problem(url: str) -> str | None:
    """What is wrong with a worker's URL, None when nothing is."""
    if "@" in url:
        # Not shown: it may hold a password.
        return f"{EXPECTED}, found a user name or password in it; use api_key_file"
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as exc:
        return f"{EXPECTED}, found {url[:60]!r} ({exc})"
    if any(char.isspace() or not char.isprintable() for char in url):
        return f"{EXPECTED}, found a space or control character in {url[:60]!r}"
    if parts.scheme == "unix":
        return _unix_problem(url, parts)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"{EXPECTED}, found {url[:60]!r}"
    if port == 0:
        return f"{EXPECTED}, found port 0 in {url[:60]!r}"
    if parts.query or parts.fragment:
        return f"{EXPECTED}, found `?` or `#` in {url[:60]!r}"
    if parts.path.rstrip("/").endswith("/v1"):
        return f"expected the worker's root, found {url[:60]!r}; remove /v1, the gateway adds it"
    return None


def _unix_problem(url: str, parts: SplitResult) -> str | None:
    if parts.netloc or not parts.path.startswith("/") or parts.path == "/" or parts.query or parts.fragment:
        return f"expected an absolute path, as in unix:///run/vllm.sock, found {url[:60]!r}"
    socket, suffix, _ = parts.path.partition(".sock")
    length = len((socket + suffix).encode())
    if length > MAX_SOCKET_PATH_BYTES:
        return f"expected a socket path of at most {MAX_SOCKET_PATH_BYTES} bytes, found {length}"
    return None
