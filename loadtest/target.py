"""The endpoint under test: reading its URL, telling loopback from elsewhere."""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from urllib.parse import urlsplit


class UsageError(Exception):
    """Something the person at the keyboard can mend; the message says what and how."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go. `prefix` is the URL's path before /v1, usually empty."""

    host: str
    port: int
    tls: bool = False
    prefix: str = ""

    @property
    def netloc(self) -> str:
        """host:port as the Host header wants it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """The URL without /v1."""
        return f"{'https' if self.tls else 'http'}://{self.netloc}{self.prefix}"

    def is_loopback(self) -> bool:
        """Whether every address of the host is on this machine's loopback; a name without addresses is not."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            return False
        return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)


def parse_target(url: str) -> Target:
    """
    Reads a URL like http://127.0.0.1:8000; a trailing /v1 is dropped.

    Raises:
        UsageError: anything but an http or https URL with a host.
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = -1
    if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
        raise UsageError(
            f"expected a target like http://127.0.0.1:8000, found {url!r}: set --target (make loadtest TARGET=)"
        )
    tls = parts.scheme == "https"
    prefix = parts.path.rstrip("/").removesuffix("/v1")
    return Target(parts.hostname, port or (443 if tls else 80), tls, prefix)
