"""Key tests on sockets run on uvloop and over both ways of writing to the client, as the relay's own do."""

from __future__ import annotations

from tests.proxy.conftest import anyio_backend, gateway

__all__ = ["anyio_backend", "gateway"]
