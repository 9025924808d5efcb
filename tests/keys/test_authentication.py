"""Which headers are a key, whose it is, and that a refusal tells nothing."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from gateway.api.authentication import KeyAuthenticator
from gateway.errors import Rejected, RequestError
from gateway.keys import ApiKey, digest_of

SECRET, OTHER = "sk-CANARY-one", "sk-CANARY-two"


def key(secret: str, name: str = "acme", number: int = 1, **more: object) -> ApiKey:
    sha256 = digest_of(secret.encode()).hex()
    return ApiKey(id=f"key-{number:08x}", name=name, sha256=sha256, created=1, **more)  # type: ignore[arg-type]


@pytest.fixture
def known() -> KeyAuthenticator:
    """Two keys."""
    authenticator = KeyAuthenticator(anonymous_allowed=True)
    authenticator.replace([key(SECRET), key(OTHER, "other", 2)])
    return authenticator


def presented(*headers: tuple[str, str]) -> list[tuple[bytes, bytes]]:
    around = [("host", "x"), ("user-agent", "y")]
    return [(name.encode(), value.encode()) for name, value in (around[0], *headers, around[1])]


@pytest.mark.parametrize(
    "headers",
    [
        [("authorization", f"Bearer {SECRET}")],
        [("authorization", f"bearer {SECRET}")],
        [("authorization", f"BEARER  {SECRET}")],
        [("authorization", f"bEaReR   {SECRET}  ")],
        [("x-api-key", SECRET)],
        [("api-key", f" {SECRET} ")],
        [("authorization", f"Bearer {SECRET}"), ("x-api-key", SECRET)],
        [("authorization", f"Bearer {SECRET}"), ("x-api-key", "")],
        [("authorization", "Bearer "), ("x-api-key", SECRET)],
    ],
    ids=str,
)
def test_c80_a_key_is_recognised_as_clients_send_it(known: KeyAuthenticator, headers: list[tuple[str, str]]) -> None:
    assert "acme" == known.authenticate(presented(*headers)).tenant


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("authorization", "")],
        [("authorization", "Bearer")],
        [("authorization", "Bearer ")],
        [("authorization", SECRET)],
        [("authorization", f"Bearer\t{SECRET}")],
        [("authorization", f"Basic {SECRET}")],
        [("authorization", f"Bearer{SECRET}")],
        [("authorization", f"Bearer {SECRET}x")],
        [("authorization", f"Bearer {SECRET[:-1]}")],
        [("authorization", f"Bearer {SECRET.lower()}")],
        [("authorization", f"Bearer {SECRET},{OTHER}")],
        [("authorization", f"Bearer {SECRET}"), ("authorization", f"Bearer {SECRET}")],
        [("authorization", f"Bearer {SECRET}"), ("authorization", f"Bearer {OTHER}")],
        [("authorization", f"Bearer {SECRET}"), ("x-api-key", OTHER)],
        [("authorization", f"Basic {SECRET}"), ("x-api-key", SECRET)],
        [("x-api-key", SECRET), ("x-api-key", SECRET)],
        [("x-api-key", f"Bearer {SECRET}")],
        [("x-api-key", digest_of(SECRET.encode()).hex())],
        [("cookie", SECRET), ("proxy-authorization", f"Bearer {SECRET}")],
    ],
    ids=str,
)
def test_c78_every_refusal_is_the_same(known: KeyAuthenticator, headers: list[tuple[str, str]]) -> None:
    """Missing, malformed, ambiguous, unknown: one answer, with nothing of what was sent."""
    with pytest.raises(RequestError) as raised:
        known.authenticate(presented(*headers))
    error = raised.value

    assert (401, "invalid_api_key", "invalid_request_error", False) == (
        error.status,
        error.code,
        error.type,
        error.should_retry,
    )
    assert "A valid API key is required. Send it as 'Authorization: Bearer KEY'." == error.message


def test_without_a_set_of_keys_callers_are_anonymous_where_that_is_allowed() -> None:
    """Whatever key their client was made to send; elsewhere nobody is let in."""
    headers = presented(("authorization", "Bearer unused"))

    assert ("", None) == (
        KeyAuthenticator(anonymous_allowed=True).authenticate(headers).tenant,
        KeyAuthenticator(anonymous_allowed=True).authenticate(presented()).models,
    )
    with pytest.raises(RequestError, match="invalid_api_key"):
        KeyAuthenticator(anonymous_allowed=False).authenticate(headers)


def test_the_last_key_revoked_opens_nothing(known: KeyAuthenticator) -> None:
    known.replace([])

    for headers in (presented(), presented(("x-api-key", SECRET))):
        with pytest.raises(RequestError, match="invalid_api_key"):
            known.authenticate(headers)


def test_keys_that_cannot_be_read_leave_the_known_ones_in_force(known: KeyAuthenticator) -> None:
    """A process that knows none refuses, and says that it is not the key's fault."""
    known.keys_unreadable()
    assert "acme" == known.authenticate(presented(("x-api-key", SECRET))).tenant

    fresh = KeyAuthenticator(anonymous_allowed=True)
    fresh.keys_unreadable()
    with pytest.raises(RequestError) as raised:
        fresh.authenticate(presented(("x-api-key", SECRET)))
    assert (503, "keys_unavailable") == (raised.value.status, raised.value.code)
    fresh.replace([key(SECRET)])
    assert "acme" == fresh.authenticate(presented(("x-api-key", SECRET))).tenant


def test_a_caller_is_what_its_key_says(known: KeyAuthenticator) -> None:
    known.replace([key(SECRET, models=("a", "b"), priority=4)])
    caller = known.authenticate(presented(("x-api-key", SECRET)))

    assert ("acme", frozenset({"a", "b"}), 4) == (caller.tenant, caller.models, caller.priority)
    assert SECRET not in repr(caller)


def test_the_limit_counts_per_key_and_survives_changes_of_the_file(known: KeyAuthenticator) -> None:
    """Running requests count on after a reload; the new limit holds for new ones; other keys have their own."""
    known.replace([key(SECRET, max_in_flight=2), key(OTHER, "other", 2, max_in_flight=1)])

    def enter(stack: ExitStack, secret: str) -> None:
        stack.enter_context(known.authenticate(presented(("x-api-key", secret))).slots)

    with ExitStack() as running:
        enter(running, SECRET)
        enter(running, SECRET)
        enter(running, OTHER)
        with pytest.raises(Rejected) as raised:
            enter(running, SECRET)
        assert (429, "requests", "rate_limit_exceeded", "tenant_limit") == (
            raised.value.status,
            raised.value.type,
            raised.value.code,
            raised.value.reason,
        )
        assert 3 == known.in_flight
        known.replace([key(SECRET, max_in_flight=3)])
        enter(running, SECRET)
        with pytest.raises(Rejected):
            enter(running, SECRET)
        assert 4 == known.in_flight, "the revoked key's request runs on"

    assert 0 == known.in_flight
