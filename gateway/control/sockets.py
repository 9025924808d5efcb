"""The listening sockets of the supervisor: who may bind where, and what to say when it does not work."""

from __future__ import annotations

import errno
import os
import socket
import sys

import psutil

from gateway.errors import ConfigurationError, PortInUse
from gateway.keys import anonymous_allowed

BACKLOG = 2048


def public_bind_allowed(host: str, *, keys_configured: bool, allow_anonymous: bool) -> bool:
    """
    Whether clients may be served on `host`: an address that other machines reach needs API keys, or the operator's
    word that none are wanted.
    """
    return keys_configured or anonymous_allowed(host, allow_anonymous=allow_anonymous)


def require_public_bind(host: str, *, keys_configured: bool, allow_anonymous: bool) -> None:
    """Raise ConfigurationError naming the key when `public_bind_allowed` says no."""
    if not public_bind_allowed(host, keys_configured=keys_configured, allow_anonymous=allow_anonymous):
        raise ConfigurationError(
            f"{host} can be reached by other machines and there are no API keys; "
            "use 127.0.0.1, make one with `gateway keys create NAME`, or set allow_anonymous: true to serve everybody",
            key="listen.host",
        )


def listen(host: str, port: int, *, key: str, count: int = 1) -> list[socket.socket]:
    """
    `count` listening sockets on one address, one per gateway-process slot.

    One socket per slot instead of one shared by all: the kernel then spreads connections evenly. They listen from now
    on, so that a connection made before, or between two, gateway processes waits instead of being refused. Port 0 takes
    a free one, the same for all.

    Args:
        key: Configuration section for error messages, `listen` or `admin`.

    Raises:
        PortInUse: Somebody listens there already.
        ConfigurationError: The address is not ours, or the port needs rights we lack.
    """
    family, address = _resolve(host, port, key)
    opened: list[socket.socket] = []
    try:
        # SO_REUSEPORT would let a second gateway of the same user join our port and steal half of the connections, so
        # the first bind goes without: it fails whenever anybody listens.
        with _bound(family, address, key, reuse_port=False) as probe:
            address = (address[0], probe.getsockname()[1], *address[2:])
        for _ in range(count):
            bound = _bound(family, address, key, reuse_port=True)
            opened.append(bound)
            bound.listen(BACKLOG)
            bound.setblocking(False)
    except BaseException:
        for each in opened:
            each.close()
        raise
    return opened


def listen_beside(bound: socket.socket, *, key: str) -> socket.socket:
    """One more socket like `bound` on the same address, listening from now on. Raises as `listen`."""
    beside = _bound(bound.family, bound.getsockname(), key, reuse_port=True)
    beside.listen(BACKLOG)
    beside.setblocking(False)
    return beside


def listen_unix(path: str) -> socket.socket:
    """A listening Unix socket only its owner can use. `path` must be free and its directory private (mode 0700)."""
    bound = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        bound.bind(path)
        # Safe although it comes after bind: nobody else can enter the directory.
        os.chmod(path, 0o600)
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except BaseException:
        bound.close()
        raise
    return bound


def url(bound: socket.socket, host: str) -> str:
    """`http://HOST:PORT` under which a client on this machine reaches the socket."""
    plain = host.strip("[]")
    shown = "127.0.0.1" if plain in ("0.0.0.0", "::", "") else plain
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{bound.getsockname()[1]}"


def _resolve(host: str, port: int, key: str) -> tuple[socket.AddressFamily, tuple[str | int, ...]]:
    try:
        found = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as exc:
        raise ConfigurationError(
            f"{host!r} is not an address of this machine ({exc}); use 127.0.0.1 or 0.0.0.0", key=f"{key}.host"
        ) from exc
    family, _, _, _, address = found[0]
    return family, tuple(part for part in address if isinstance(part, str | int))


def _bound(family: int, address: tuple[str | int, ...], key: str, *, reuse_port: bool) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        # Without it a restart fails for a minute after connections were closed by us (TIME_WAIT).
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        bound.bind(address)
    except OSError as exc:
        bound.close()
        raise _translated(exc, str(address[0]), int(address[1]), key) from exc
    except BaseException:
        bound.close()
        raise
    return bound


def _translated(exc: OSError, host: str, port: int, key: str) -> Exception:
    if exc.errno == errno.EADDRINUSE:
        option = "--port" if key == "listen" else "--admin-port"
        return PortInUse(
            f"{key}.port: {host}:{port} is already in use{_holder(port)}",
            fix=f"choose another port with {option} or {key}.port, or stop the program that `{_show(port)}` names",
        )
    if exc.errno == errno.EACCES:
        return ConfigurationError(
            f"port {port} needs rights that you do not have; choose one above 1023", key=f"{key}.port"
        )
    if exc.errno == errno.EADDRNOTAVAIL:
        return ConfigurationError(
            f"{host} is not an address of this machine; use 127.0.0.1 or 0.0.0.0", key=f"{key}.host"
        )
    return ConfigurationError(f"cannot listen on {host}:{port}: {exc.strerror}", key=f"{key}.host")


def _show(port: int) -> str:
    return f"ss -ltnp 'sport = :{port}'" if sys.platform == "linux" else f"lsof -nP -iTCP:{port} -sTCP:LISTEN"


def _holder(port: int) -> str:
    """` by NAME (pid N)` where the system tells us; other users' processes stay unnamed."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status != psutil.CONN_LISTEN or not connection.laddr or not connection.pid:
                continue
            if connection.laddr.port == port:
                return f" by {psutil.Process(connection.pid).name()} (pid {connection.pid})"
    except psutil.Error:
        return ""
    return ""
