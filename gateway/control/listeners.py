"""
The public sockets of all slots, and how their number changes without a refused or a lost connection.

Sockets of one address share its connections out by a hash, each with a queue of its own. A socket that is opened gets
connections at once, and one that is closed takes those with it which wait in its queue. So new connections are steered
to some of the sockets (a small filter in the kernel chooses among them at random): to those whose process accepts. A
socket that goes gets none any more, and what it had before is accepted before it is closed.

Without that filter (systems other than Linux) connections to a socket wait until its process is there, and closing one
may lose a connection that arrives in the very moment.
"""

from __future__ import annotations

import ctypes
import select
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress

from gateway.control.sockets import listen_beside

SO_ATTACH_REUSEPORT_CBPF = 51
"""Linux, missing in Python's `socket`."""
_LOAD_WORD, _MODULO, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x94, 0x15, 0x06
"""Opcodes of classic BPF: BPF_LD|BPF_W|BPF_ABS, BPF_ALU|BPF_MOD|BPF_K, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K."""
_RANDOM = 0xFFFFF000 + 56
"""SKF_AD_OFF + SKF_AD_RANDOM: instead of a byte of the packet, a random number."""


class Listeners:
    """
    One listening socket for each slot, all on one address. The supervisor owns them; gateway processes inherit them.

    Args:
        opened: From `sockets.listen`, owned from now on.
        key: Configuration section, for error messages.
    """

    def __init__(self, opened: Sequence[socket.socket], *, key: str = "listen") -> None:
        self._sockets = list(opened)
        self._steered = tuple(range(len(self._sockets)))
        self._key = key

    def __len__(self) -> int:
        return len(self._sockets)

    def of(self, slot: int) -> socket.socket:
        """The slot's socket."""
        return self._sockets[slot]

    def grow(self, count: int) -> None:
        """
        Have at least `count` sockets. The new ones get no connection before `steer` says so.

        Raises:
            PortInUse, ConfigurationError: The system refuses; there are as many as before.
        """
        before = len(self._sockets)
        if count <= before:
            return
        self._attach(self._steered)
        try:
            while len(self._sockets) < count:
                self._sockets.append(listen_beside(self._sockets[0], key=self._key))
        except BaseException:
            self.close_from(before)
            raise

    def steer(self, slots: Sequence[int]) -> None:
        """New connections go to the sockets of these slots, evenly. Without effect where the system cannot do that."""
        if tuple(slots) != self._steered:
            self._attach(slots)
            self._steered = tuple(slots)

    def _attach(self, slots: Sequence[int]) -> None:
        if sys.platform == "linux":
            code = b"".join(struct.pack("=HBBI", *instruction) for instruction in _choice(slots))
            buffer = ctypes.create_string_buffer(code, len(code))
            program = struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
            with suppress(OSError):  # a kernel before 4.5, or a sandbox that lacks it: as on other systems
                self._sockets[0].setsockopt(socket.SOL_SOCKET, SO_ATTACH_REUSEPORT_CBPF, program)

    def waiting_from(self, slot: int) -> bool:
        """Whether a connection waits to be accepted on the sockets of this slot and those above."""
        poll = select.poll()
        for bound in self._sockets[slot:]:
            poll.register(bound, select.POLLIN)
        return bool(poll.poll(0))

    def close_from(self, slot: int) -> None:
        """
        End listening on the sockets of this slot and those above, whoever else has them open, the last one first: the
        kernel numbers sockets by their order, and what remains keeps its numbers.
        """
        for bound in reversed(self._sockets[slot:]):
            with suppress(OSError):  # macOS has no such thing for a listening socket
                bound.shutdown(socket.SHUT_RD)
            bound.close()
        del self._sockets[slot:]

    def close(self) -> None:
        """Close our descriptors; gateway processes that still have theirs go on listening."""
        for bound in self._sockets:
            bound.close()


def _choice(slots: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """The filter: a random one of these slots. Each instruction is opcode, jump if true, jump if false, operand."""
    yield _LOAD_WORD, 0, 0, _RANDOM
    yield _MODULO, 0, 0, len(slots)
    for number, slot in enumerate(slots[:-1]):
        yield _JUMP_IF_EQUAL, 0, 1, number
        yield _RETURN, 0, 0, slot
    yield _RETURN, 0, 0, slots[-1]
