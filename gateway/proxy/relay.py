"""What the exchanges of one gateway process share, and the entry for requests."""

from __future__ import annotations

import os
from itertools import count
from typing import TYPE_CHECKING

from gateway.protocol.paths import InferenceRoute
from gateway.proxy.body_budget import BodyBudget
from gateway.proxy.client import Receive, Scope, Send
from gateway.proxy.exchange import Exchange
from gateway.types import Outcome

if TYPE_CHECKING:
    from gateway.proxy.interfaces import Caller, Dispatcher, Recorder, Tracer
    from gateway.proxy.policy import RelayPolicy
    from gateway.proxy.pool import ConnectionPools


class Relay:
    """
    Relays requests to workers.

    `active` holds the running exchanges; it is empty at idle. `tracer` is None where traces are off.
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
        self.bodies = BodyBudget(policy.max_buffered_bytes)
        self.active: set[Exchange] = set()
        self._id_prefix = os.urandom(12).hex()
        self._id_counter = count(int.from_bytes(os.urandom(3), "big"))

    def new_id(self) -> str:
        """An id that no other request, attempt or process has."""
        return f"{self._id_prefix}{next(self._id_counter):08x}"

    async def serve(self, route: InferenceRoute, scope: Scope, receive: Receive, send: Send, caller: Caller) -> None:
        """Serve one request for `route`; the client is always answered, unless it has left."""
        await Exchange(self, route, scope, receive, send, caller).run()

    def shut_down(self) -> None:
        """End every running exchange now: streams get an error event, other requests 503."""
        for exchange in list(self.active):
            exchange.interrupt(Outcome.SHUTDOWN)
