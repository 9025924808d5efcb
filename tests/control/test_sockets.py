"""Who may listen where, and what is said when it does not work."""

from __future__ import annotations

import os
import socket

import pytest

from gateway.control.sockets import listen, public_bind_allowed, require_public_bind, url
from gateway.errors import ConfigurationError, PortInUse
from gateway.keys import is_loopback


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_keys(host: str) -> None:
    assert is_loopback(host)
    assert public_bind_allowed(host, keys_configured=False, allow_anonymous=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "gateway.example", "localhost.example", ""])
def test_any_other_address_needs_keys_or_the_operators_word(host: str) -> None:
    """Nobody opens a model to the network by accident; the error names the key to change."""
    assert not public_bind_allowed(host, keys_configured=False, allow_anonymous=False)
    assert public_bind_allowed(host, keys_configured=True, allow_anonymous=False)
    assert public_bind_allowed(host, keys_configured=False, allow_anonymous=True)
    with pytest.raises(ConfigurationError, match=r"listen\.host.*allow_anonymous"):
        require_public_bind(host, keys_configured=False, allow_anonymous=False)


def test_a_port_in_use_names_key_holder_and_command() -> None:
    """The one who holds it is named where the system tells, here this very process."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortInUse) as caught:
            listen("127.0.0.1", port, key="listen")

    assert 4 == caught.value.exit_code
    for expected in (f"listen.port: 127.0.0.1:{port}", f"(pid {os.getpid()})", "--port", f":{port}"):
        assert expected in str(caught.value)


def test_a_second_gateway_cannot_join_the_port() -> None:
    """SO_REUSEPORT alone would let it, and half of the clients would reach the wrong fleet."""
    (first,) = listen("127.0.0.1", 0, key="listen")
    with first, pytest.raises(PortInUse):
        listen("127.0.0.1", first.getsockname()[1], key="listen")


def test_every_slot_has_its_own_socket_on_the_same_port() -> None:
    """They listen at once: a connection waits in a backlog before any gateway process exists."""
    bound = listen("127.0.0.1", 0, key="listen", count=3)
    port = bound[0].getsockname()[1]
    try:
        assert [port] * 3 == [each.getsockname()[1] for each in bound]
        assert len({each.fileno() for each in bound}) == 3
        for _ in range(6):
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    finally:
        for each in bound:
            each.close()


@pytest.mark.parametrize("host", ["203.0.113.7", "no-such-host.invalid"])
def test_an_address_that_is_not_ours_names_the_key(host: str) -> None:
    with pytest.raises(ConfigurationError, match=r"admin\.host"):
        listen(host, 0, key="admin")


def test_urls_are_for_clients_on_this_machine() -> None:
    """A wildcard is no address to connect to; IPv6 needs brackets."""
    (bound,) = listen("127.0.0.1", 0, key="listen")
    with bound:
        port = bound.getsockname()[1]

        assert f"http://127.0.0.1:{port}" == url(bound, "0.0.0.0")
        assert f"http://[::1]:{port}" == url(bound, "::1")
        assert f"http://[::1]:{port}" == url(bound, "[::1]")
        assert f"http://127.0.0.1:{port}" == url(bound, "[::]")
