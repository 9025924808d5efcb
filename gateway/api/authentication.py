"""Who is calling: the seam behind which API keys are checked."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from gateway.proxy.interfaces import Caller


class Authenticator(Protocol):
    """Decides who sent a request from its headers alone, before its body is read."""

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """
        The caller.

        Raises:
            RequestError: 401, the same for every kind of wrong key.
        """
        ...


class Anonymous:
    """Everybody may call; for listeners on loopback and `allow_anonymous: true`."""

    def __init__(self) -> None:
        self._caller = Caller()

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """The anonymous caller."""
        return self._caller
