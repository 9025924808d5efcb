"""Who is calling: API keys, looked up before a request's body is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from gateway.errors import RequestError
from gateway.keys import ApiKey, InFlightSlots, SharedCount, digest_of
from gateway.proxy.interfaces import Caller

_AUTHORIZATION = b"authorization"
_KEY_HEADERS = frozenset({_AUTHORIZATION, b"x-api-key", b"api-key"})
_SCHEME = b"bearer "


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


class KeyAuthenticator:
    """
    Asks for an API key as soon as there is a set of keys, an empty one too.

    A key travels as `Authorization: Bearer KEY` (scheme in any case), `x-api-key` or `api-key`. A request that presents
    two different ones is refused: which of them is meant is not ours to guess.

    Args:
        anonymous_allowed: Whether everybody may call as long as there is no set of keys.
        shared: By a key's id, where all gateway processes count its requests; None: this process is alone.
    """

    def __init__(self, *, anonymous_allowed: bool, shared: Callable[[str], SharedCount] | None = None) -> None:
        self._shared = shared
        self._anonymous: Caller | None = Caller() if anonymous_allowed else None
        self._callers: dict[bytes, Caller] = {}
        self._slots: dict[str, InFlightSlots] = {}
        self._known = False
        self._unreadable = False

    def replace(self, keys: Iterable[ApiKey]) -> None:
        """These are all keys from now on. Requests that run are not touched, and go on counting against their key."""
        callers: dict[bytes, Caller] = {}
        slots: dict[str, InFlightSlots] = {}
        for key in keys:
            mine = slots[key.id] = self._slots.get(key.id) or self._new_slots(key)
            if mine.limit != key.max_in_flight:
                mine.limit = key.max_in_flight
            models = frozenset(key.models) if key.models is not None else None
            callers[key.digest] = Caller(key.name, models, key.priority, mine)
        # A key that is back before its last request has ended goes on counting where it was.
        running = {key_id: mine for key_id, mine in self._slots.items() if mine.in_flight}
        self._callers, self._slots = callers, running | slots
        self._anonymous, self._known, self._unreadable = None, True, False

    def keys_unreadable(self) -> None:
        """There may be keys and they cannot be read: keep those we know, and let nobody in if we know none."""
        if not self._known:
            self._anonymous, self._unreadable = None, True

    @property
    def in_flight(self) -> int:
        """Requests running on behalf of keys, revoked ones included; zero at idle."""
        return sum(slots.in_flight for slots in self._slots.values())

    def _new_slots(self, key: ApiKey) -> InFlightSlots:
        return InFlightSlots(key.max_in_flight, self._shared(key.id) if self._shared is not None else None)

    def authenticate(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """
        The key's caller, or the anonymous one. One pass over the headers, one hash, one look-up.

        Raises:
            RequestError: 401 without a valid key; 503 while the keys cannot be read at all.
        """
        if self._anonymous is not None:
            return self._anonymous
        found_in = secret = b""
        for name, value in headers:
            if name in _KEY_HEADERS:
                if name == _AUTHORIZATION:
                    if value[:7].lower() != _SCHEME:
                        raise _refused()
                    value = value[7:]
                value = value.strip(b" ")
                if not value:
                    continue
                if secret and (name == found_in or value != secret):
                    raise _refused()
                found_in, secret = name, value
        caller = self._callers.get(digest_of(secret))
        if caller is None:
            if self._unreadable:
                raise RequestError(
                    503, "API keys cannot be checked at the moment.", type="server_error", code="keys_unavailable"
                )
            raise _refused()
        return caller


def _refused() -> RequestError:
    """The same for a missing, malformed, unknown and revoked key, so that it tells nothing about any."""
    return RequestError(
        401,
        "A valid API key is required. Send it as 'Authorization: Bearer KEY'.",
        code="invalid_api_key",
        should_retry=False,
    )
