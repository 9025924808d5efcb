"""What the exchanges of one gateway process share, and the entry for requests."""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, Final

from gateway.protocol.paths import InferenceRoute
from gateway.proxy import inline
from gateway.proxy.body_budget import BodyBudget
from gateway.proxy.client import ClientSide, Headers
from gateway.proxy.direct import DirectTransport, Receive, Scope, Send, direct_transport
from gateway.proxy.exchange import Exchange
from gateway.proxy.processor_yield import ProcessorYield
from gateway.types import Outcome

if TYPE_CHECKING:
    from gateway.proxy.interfaces import Caller, Dispatcher, Recorder, Tracer
    from gateway.proxy.policy import RelayPolicy
    from gateway.proxy.pool import ConnectionPools


_LAST_BYTE: Final = [format(number, "02x") for number in range(256)]
ARM_AFTER_S: Final = 0.02
"""An exchange that has lasted so long gets a timer for its time limits."""


class Relay:
    """
    Relays requests to workers.

    `active` holds the running exchanges, `unarmed` those of them whose time limits are watched from a moment later on;
    both are empty at idle. `tracer` is None where traces are off. `processor` is what all streams of the process share.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        recorder: Recorder,
        pools: ConnectionPools,
        policy: RelayPolicy,
        tracer: Tracer | None = None,
    ) -> None:
        self.dispatcher = dispatcher
        self.tracer = tracer
        self.recorder = recorder
        self.pools = pools
        self.policy = policy
        self.processor = ProcessorYield(os.sched_yield)
        self.bodies = BodyBudget(policy.max_buffered_bytes)
        self.active: set[Exchange] = set()
        self.unarmed: set[Exchange] = set()
        self._arming: asyncio.TimerHandle | None = None
        self._id_prefix = os.urandom(12).hex()
        self._id_next = int.from_bytes(os.urandom(3), "big")
        self._id_begin = ""

    def new_id(self) -> str:
        """An id that no other request, attempt or process has."""
        number = self._id_next
        self._id_next = number + 1
        if not self._id_begin or not number & 0xFF:
            # Formatting a number costs as much as eight such joins.
            self._id_begin = self._id_prefix + format(number >> 8, "06x")
        return self._id_begin + _LAST_BYTE[number & 0xFF]

    async def serve(self, route: InferenceRoute, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one request for `route`; the client is always answered, unless it has left."""
        client = ClientSide(scope["method"], scope["headers"], direct_transport(scope), allow_direct=self.policy.direct)
        await Exchange(self, route, client, caller).run(receive, send)

    def serve_inline(
        self,
        route: InferenceRoute,
        headers: Headers,
        body: bytes,
        direct: DirectTransport,
        caller: Caller,
        heads: dict[tuple[str, str], bytes],
    ) -> bool:
        """
        Begin to serve a POST whose body has arrived, without a task.

        Args:
            heads: See `ClientSide`; to be passed again for requests with the same headers.

        Returns:
            False: nothing was done, use `serve`.
        """
        if not self.policy.direct or len(body) > self.policy.max_body_bytes:
            return False
        client = ClientSide("POST", headers, direct, allow_direct=True, heads=heads)
        return inline.begin(Exchange(self, route, client, caller), body)

    def arm_later(self, exchange: Exchange) -> None:
        """Watch the exchange's time limits if it still runs in a moment: most small requests need no timer."""
        self.unarmed.add(exchange)
        if self._arming is None:
            self._arming = asyncio.get_running_loop().call_later(ARM_AFTER_S, self._arm)

    def _arm(self) -> None:
        self._arming = None
        unarmed, self.unarmed = self.unarmed, set()
        for exchange in unarmed:
            if exchange.inline:
                exchange.arm()

    def shut_down(self) -> None:
        """End every running exchange now: streams get an error event, other requests 503."""
        for exchange in list(self.active):
            exchange.interrupt(Outcome.SHUTDOWN)
