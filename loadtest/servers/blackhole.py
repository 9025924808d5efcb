"""
An address where connecting never completes: no refusal, no acceptance, as with a dead host behind a firewall.

Works on Linux loopback: a listener nobody accepts from, whose queue is full, drops further connection requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def blackhole(settle_s: float = 0.2) -> AsyncIterator[int]:
    """
    Yields the port; connecting to 127.0.0.1 there takes for ever (the kernel retries after 1, 3, 7 ... seconds).

    `settle_s` is how long one filling connection may take before the queue counts as full.
    """
    loop = asyncio.get_running_loop()
    fillers: list[socket.socket] = []
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        try:
            with contextlib.suppress(TimeoutError):
                while True:
                    filler = socket.socket()
                    filler.setblocking(False)
                    fillers.append(filler)
                    await asyncio.wait_for(loop.sock_connect(filler, address), settle_s)
            yield int(address[1])
        finally:
            for filler in fillers:
                filler.close()
