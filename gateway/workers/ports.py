"""Free loopback ports for workers."""

from __future__ import annotations

import socket

from gateway.errors import PortInUse

_TRIES = 64


class LoopbackPorts:
    """
    Hands out free TCP ports of 127.0.0.1, none twice at a time (`PortReserver`).

    Another program may still take a port before the worker binds it; the worker then fails its start, or is found out
    by the identity check, and gets another one.
    """

    def __init__(self) -> None:
        self._given: set[int] = set()

    def reserve(self) -> int:
        """
        Raises:
            PortInUse: the system has no free port left.
        """
        for _ in range(_TRIES):
            with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
                # Without SO_REUSEADDR the kernel gives no port that is still in TIME_WAIT.
                try:
                    probe.bind(("127.0.0.1", 0))
                except OSError as exc:
                    raise PortInUse(
                        f"no free TCP port on 127.0.0.1: {exc.strerror}",
                        fix="widen net.ipv4.ip_local_port_range, or set models.NAME.launch.transport: uds",
                    ) from exc
                port = int(probe.getsockname()[1])
            if port not in self._given:
                self._given.add(port)
                return port
        raise PortInUse(
            f"the system offered only ports that workers already have, {_TRIES} times",
            fix="widen net.ipv4.ip_local_port_range, or set models.NAME.launch.transport: uds",
        )

    def claim(self, port: int) -> None:
        self._given.add(port)

    def release(self, port: int) -> None:
        self._given.discard(port)
