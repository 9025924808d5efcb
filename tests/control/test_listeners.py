"""The public sockets of all slots: their number changes, and no connection is refused or lost."""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from gateway.control.listeners import Listeners
from gateway.control.sockets import listen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the filter in the kernel is Linux's")


class Clients:
    """Connections to one address, and what became of them."""

    def __init__(self, listeners: Listeners, stack: ExitStack) -> None:
        self._listeners = listeners
        self._stack = stack

    def connect(self, count: int) -> None:
        """So many more; each is in some socket's queue when this returns."""
        address = self._listeners.of(0).getsockname()
        for _ in range(count):
            self._stack.enter_context(socket.create_connection(address, timeout=5))

    def accepted(self) -> list[int]:
        """Take everything out of the queues: how many each slot had."""
        return [self._taken(self._listeners.of(slot)) for slot in range(len(self._listeners))]

    def _taken(self, bound: socket.socket) -> int:
        count = 0
        while True:
            try:
                connection, _ = bound.accept()
            except BlockingIOError:
                return count
            connection.close()
            count += 1


@pytest.fixture
def listeners() -> Iterator[Listeners]:
    opened = Listeners(listen("127.0.0.1", 0, key="listen"))
    yield opened
    opened.close()


@pytest.fixture
def clients(listeners: Listeners) -> Iterator[Clients]:
    with ExitStack() as stack:
        yield Clients(listeners, stack)


def test_new_sockets_get_nothing_before_they_may(listeners: Listeners, clients: Clients) -> None:
    """Their processes do not accept yet. Afterwards every socket gets its share."""
    listeners.grow(4)
    clients.connect(50)

    assert [50, 0, 0, 0] == clients.accepted()

    listeners.steer(range(4))
    clients.connect(200)
    shares = clients.accepted()

    assert 200 == sum(shares)
    assert min(shares) > 0


def test_a_socket_is_emptied_before_it_is_closed(listeners: Listeners, clients: Clients) -> None:
    """From the moment of the steering nothing new comes to the sockets that go; what had come is still there."""
    listeners.grow(3)
    listeners.steer(range(3))
    clients.connect(90)
    listeners.steer(range(1))

    assert listeners.waiting_from(1)

    before = clients.accepted()
    clients.connect(30)

    assert 90 == sum(before)
    assert not listeners.waiting_from(1)
    assert [30, 0, 0] == clients.accepted()

    listeners.close_from(1)
    clients.connect(10)

    assert [10] == clients.accepted()


def test_new_connections_go_to_the_sockets_that_are_named(listeners: Listeners, clients: Clients) -> None:
    """Any of them, evenly: where a process has died its socket is left out until the next one is there."""
    listeners.grow(4)
    listeners.steer([0, 3])
    clients.connect(100)
    first, second, third, fourth = clients.accepted()

    assert (0, 0) == (second, third)
    assert min(first, fourth) > 20

    listeners.steer([2])
    clients.connect(20)

    assert [0, 0, 20, 0] == clients.accepted()


def test_the_steering_is_right_after_sockets_went_and_came(listeners: Listeners, clients: Clients) -> None:
    """The kernel numbers sockets anew when one is closed; those that come next are numbered as ours."""
    listeners.grow(4)
    listeners.close_from(2)
    listeners.grow(3)
    clients.connect(60)
    first, second, third = clients.accepted()

    assert (60, 0) == (first + second, third)

    listeners.steer(range(3))
    clients.connect(150)

    assert min(clients.accepted()) > 0


def test_a_socket_that_goes_ends_for_whoever_inherited_it(listeners: Listeners, clients: Clients) -> None:
    """A process that still has it open does not keep connections that nobody would answer."""
    listeners.grow(2)
    inherited = listeners.of(1).dup()
    listeners.close_from(1)
    listeners.steer(range(2))  # as wrong as can be: there is no second one
    clients.connect(40)

    with inherited, pytest.raises(OSError, match="Invalid argument"):
        inherited.accept()
    assert [40] == clients.accepted()
