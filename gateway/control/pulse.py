"""Waiting for the next change of something that one event loop owns."""

from __future__ import annotations

import anyio


class Pulse:
    """
    `wait` returns at the next `beat`. Look first, then wait, with no other await between: then nothing is missed.
    """

    def __init__(self) -> None:
        self._next = anyio.Event()

    def beat(self) -> None:
        """Something changed."""
        now, self._next = self._next, anyio.Event()
        now.set()

    async def wait(self) -> None:
        """Until the next beat."""
        await self._next.wait()
