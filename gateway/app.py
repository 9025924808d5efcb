"""
Composition root of one gateway process (the data plane): `python -m gateway.data_plane --listen-fd N --control-fd N
--metrics-fd N --in-flight-fd N`, started by the supervisor and by nobody else.

The process learns everything over its control channel: first its settings, then snapshots of the fleet. It ends when it
is told to drain, when the channel ends, or on SIGTERM: it stops accepting, finishes what runs within the deadline,
tells the rest that it is shutting down, and exits.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import httpx
import uvicorn
import uvloop

from gateway import __version__
from gateway.admission import Admission, QueueLimits, share
from gateway.api.application import create_app
from gateway.api.authentication import KeyAuthenticator
from gateway.api.public_server import PublicServer
from gateway.api.server_protocol import GatewayProtocol
from gateway.clock import SystemClock
from gateway.config.settings import Model, Settings
from gateway.errors import ControlUnavailable, GatewayError
from gateway.fleet import BoardRow, FleetDispatcher, FleetView, SupervisorLink
from gateway.keys import ApiKey, KeysWatch, anonymous_allowed
from gateway.log import EventLog, adopt_foreign_logs
from gateway.messages import Configure
from gateway.metrics import Board, GatheredCounters, Layout, SlotCounters
from gateway.proxy.policy import ModelPolicy, RelayPolicy, TimeLimits
from gateway.proxy.pool import ConnectionPools
from gateway.proxy.relay import Relay
from gateway.routing import Router
from gateway.tracing import TracingSetup, open_tracing, read_headers
from gateway.types import FleetSnapshot

KEEP_ALIVE_S = 120
"""Longer than the idle time of load balancers and client pools, which would otherwise meet closed connections."""
LAST_WORDS_S = 1.0
"""After the drain deadline, for the error events of the streams that are cut to go out."""
MEASURE_EVERY_S = 1.0
FIRST_SNAPSHOT_S = 30.0
"""A process that hears nothing of the fleet for so long serves all the same, and says that it has no worker."""
BACKLOG = 4096


class GatewayProcess:
    """
    One gateway process, from its settings to its end.

    Args:
        configure: The supervisor's first message.
        listener: The inherited listening socket; closed (never shut down) when accepting stops.
        link: The control channel.
        board_fd: The inherited metrics memory.
        in_flight_fd: The inherited in-flight board.
        log: Where events and request lines go.
        compiled: Whether the hot modules run compiled; told to the supervisor.
    """

    def __init__(
        self,
        configure: Configure,
        listener: socket.socket,
        link: SupervisorLink,
        board_fd: int,
        in_flight_fd: int,
        log: EventLog,
        *,
        compiled: bool = False,
    ) -> None:
        settings = Settings.model_validate_json(configure.settings_json)
        clock = SystemClock()
        self._settings = settings
        self._listener = listener
        self._link = link
        self._log = log
        self._board = Board.attach(Layout(tuple(settings.models), configure.workers), board_fd)
        self._row = BoardRow.attach(in_flight_fd, configure.row)
        self._counters = counters = SlotCounters(
            self._board.layout, self._board.cells, log.request if settings.logging.requests else None
        )
        if settings.logging.bodies:
            log.event("bodies_are_logged", level="warning", max_bytes=settings.logging.max_body_bytes)
        self._view = FleetView(clock, counters, row=self._row)
        self._pools = ConnectionPools()
        fleet = FleetDispatcher(self._view, Router(), clock, link.report_failure, permits_of(settings))
        dispatcher = Admission(fleet, clock, queue_limits_of(settings), gauges=counters)
        self._tracing = open_tracing(_traces_of(settings, configure.slot)) if settings.traces.endpoint else None
        tracer = self._tracing.tracer if self._tracing is not None else None
        self._recorder = GatheredCounters(
            counters, lambda delay_s, call: asyncio.get_running_loop().call_later(delay_s, call)
        )
        self._relay = Relay(dispatcher, self._recorder, self._pools, relay_policy(settings), tracer)
        self._authenticator = KeyAuthenticator(
            anonymous_allowed=anonymous_allowed(settings.listen.host, allow_anonymous=settings.allow_anonymous),
            shared=self._row.key,
        )
        # Looked at before anything is served, so that no request is judged by the absence of keys that exist.
        self._keys: KeysWatch | None = None
        if configure.keys_file:
            self._keys = KeysWatch(Path(configure.keys_file), self._keys_changed, self._keys_unusable)
            self._keys.look()
        app = create_app(
            self._relay,
            self._view,
            authenticator=self._authenticator,
            cors_origins=settings.cors.allow_origins,
            metrics=_totals(settings) if settings.public_metrics else None,
        )
        self._server = PublicServer(
            uvicorn.Config(
                app,
                http=GatewayProtocol,
                ws="none",
                lifespan="off",
                loop="none",
                log_config=None,
                access_log=False,
                server_header=False,
                date_header=True,
                proxy_headers=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                backlog=BACKLOG,
            ),
            lambda: link.hello(os.getpid(), __version__, compiled=compiled),
        )
        self._cut: asyncio.Handle | None = None
        self._cut_at_s = 0.0
        self._way: asyncio.Task[None] | None = None
        self._informed = asyncio.Event()

    async def run(self) -> None:
        """Serve until drained."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._signalled)
        followers = [asyncio.create_task(self._follow()), asyncio.create_task(self._measure())]
        if self._keys is not None:
            followers.append(asyncio.create_task(self._keys.run()))
        # What exists now lives as long as the process: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        # Requests leave no reference cycles behind; the collector is for the rare ones that fail oddly.
        gc.set_threshold(50_000, 20, 20)
        try:
            # Clients wait in the socket's queue: before the first snapshot every model is unknown, and they would be
            # told so.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(FIRST_SNAPSHOT_S):
                    await self._informed.wait()
            await self._server.serve(sockets=[self._listener])
        finally:
            if self._cut is not None:
                self._cut.cancel()
            self._pools.close()
            if self._way is not None:
                followers.append(self._way)
            for follower in followers:
                follower.cancel()
            try:
                await asyncio.gather(*followers, return_exceptions=True)
                self._row.close()
                if self._tracing is not None:
                    await asyncio.to_thread(self._tracing.close)
            finally:
                self._recorder.flush()
                self._count_losses()
                self._board.close()

    def _signalled(self) -> None:
        """The first signal drains, a second one ends what still runs."""
        self.drain(0.0 if self._cut is not None else self._settings.drain_timeout_s)

    def make_way(self, deadline_s: float) -> None:
        """
        Another process accepts on the same address: accept nothing more, but serve what arrives on open connections
        until their clients have closed them (see `PublicServer`); what runs after `deadline_s` ends then. A later call
        may shorten the time.
        """
        self._informed.set()
        if not self._server.started or deadline_s <= 0:
            self._end_by(deadline_s)
            return
        loop = asyncio.get_running_loop()
        if self._way is None:
            self._way = asyncio.create_task(self._server.hand_over())
            self._way.add_done_callback(lambda _: self._end_by(0.0))
        loop.call_later(deadline_s, self._end_by, 0.0)

    def drain(self, deadline_s: float) -> None:
        """Stop accepting, finish what runs within `deadline_s` seconds, then end. A later call may shorten the time."""
        self._informed.set()
        self._view.drain()
        self._end_by(deadline_s)

    def _end_by(self, deadline_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._cut is not None:
            if self._cut_at_s <= loop.time() + deadline_s:
                return
            self._cut.cancel()
        self._cut_at_s = loop.time() + deadline_s
        self._cut = loop.call_later(deadline_s, self._relay.shut_down)
        self._server.config.timeout_graceful_shutdown = int(deadline_s + LAST_WORDS_S) + 1
        self._server.end()

    async def _follow(self) -> None:
        """Follow the control channel to its end, which means: drain."""
        try:
            await self._link.run(
                on_snapshot=self._apply,
                on_drain=self.drain,
                on_replaced=self.make_way,
                loads=self._view.loads,
                connections=self._connections,
            )
        except ControlUnavailable as error:
            self._log.event("control_channel_broken", level="error", detail=str(error))
        self.drain(self._settings.drain_timeout_s)

    def _connections(self) -> int:
        return len(self._server.server_state.connections)

    async def _measure(self) -> None:
        """What is a state and not an event goes into the metrics once a second."""
        while True:
            counts: dict[str, tuple[int, int]] = {}
            for pool in self._pools.counts():  # one for each launch
                in_use, idle = counts.get(pool.worker, (0, 0))
                counts[pool.worker] = (in_use + pool.in_use, idle + pool.idle)
            self._counters.connections(counts)
            self._count_losses()
            await asyncio.sleep(MEASURE_EVERY_S)

    def _count_losses(self) -> None:
        self._counters.lost(self._log.dropped, self._tracing.dropped if self._tracing is not None else 0)

    def _keys_changed(self, keys: tuple[ApiKey, ...]) -> None:
        self._authenticator.replace(keys)
        self._log.event("keys_loaded", level="info" if keys else "warning", keys=len(keys))

    def _keys_unusable(self, problem: str) -> None:
        self._authenticator.keys_unreadable()
        self._log.event("keys_unreadable", level="error", detail=problem)

    def _apply(self, snapshot: FleetSnapshot) -> None:
        if self._view.apply(snapshot):
            self._pools.retain(snapshot.workers)
        self._informed.set()


def permits_of(settings: Settings) -> dict[str, int]:
    """Requests that each worker may have in flight, by model; models without a limit are left out."""
    return {name: model.max_in_flight for name, model in settings.models.items() if model.max_in_flight is not None}


def queue_limits_of(settings: Settings) -> dict[str, QueueLimits]:
    """How many requests may wait in one of the gateway processes, and how long, by model."""
    return {
        name: QueueLimits(share(model.max_queued, settings.processes), model.queue_timeout_s)
        for name, model in settings.models.items()
    }


def relay_policy(settings: Settings) -> RelayPolicy:
    """The settings as the relay takes them."""
    return RelayPolicy(
        models={name: model_policy(model) for name, model in settings.models.items()},
        max_body_bytes=settings.limits.max_body_bytes,
        max_json_depth=settings.limits.max_json_depth,
        max_buffered_bytes=max(
            share(settings.limits.max_buffered_bytes, settings.processes), settings.limits.max_body_bytes
        ),
        logged_body_bytes=settings.logging.max_body_bytes if settings.logging.bodies else 0,
    )


def _traces_of(settings: Settings, slot: int) -> TracingSetup:
    traces = settings.traces
    return TracingSetup(
        endpoint=traces.endpoint or "",
        sample_ratio=traces.sample_ratio,
        trust_incoming=traces.trust_incoming,
        headers=read_headers(traces.headers_file) if traces.headers_file is not None else {},
        version=__version__,
        instance=f"{socket.gethostname()}:{settings.listen.port}/{slot}",
    )


def model_policy(model: Model) -> ModelPolicy:
    """One model's settings as the relay takes them."""
    timeouts = model.timeouts
    return ModelPolicy(
        limits=TimeLimits(
            connect_s=timeouts.connect_s,
            first_byte_s=timeouts.first_byte_s,
            first_token_s=timeouts.first_token_s,
            idle_s=timeouts.idle_s,
            total_s=timeouts.total_s,
        ),
        retries=model.retries,
        heartbeat_s=model.sse_heartbeat_s,
        default_max_tokens=model.default_max_tokens,
        max_tokens_limit=model.max_tokens_limit,
        pass_operator_fields=model.pass_operator_fields,
    )


def _totals(settings: Settings) -> Callable[[], Awaitable[tuple[bytes, str]]]:
    """The supervisor's metrics text: the totals of all gateway processes."""
    url = f"http://{settings.admin.host}:{settings.admin.port}/metrics"

    async def fetch() -> tuple[bytes, str]:
        async with httpx.AsyncClient(timeout=10, trust_env=False) as client:
            response = await client.get(url)
            response.raise_for_status()
            return response.content, response.headers["content-type"]

    return fetch


async def serve(listen_fd: int, control_fd: int, metrics_fd: int, in_flight_fd: int, *, compiled: bool) -> None:
    """
    Be a gateway process on inherited descriptors.

    Raises:
        GatewayError: The descriptors or what came over them are not a supervisor's.
    """
    link = SupervisorLink.from_fd(control_fd, SystemClock())
    configure = await link.configuration()
    settings = Settings.model_validate_json(configure.settings_json)
    log = EventLog.to_file(
        sys.stderr.buffer, SystemClock(), settings.logging.format, {"process": "gateway", "slot": configure.slot}
    )
    adopt_foreign_logs(log)
    listener = socket.socket(fileno=listen_fd)
    try:
        await GatewayProcess(configure, listener, link, metrics_fd, in_flight_fd, log, compiled=compiled).run()
    finally:
        log.close()


def main(argv: Sequence[str], *, compiled: bool) -> int:
    """Run the process; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m gateway.data_plane", description=__doc__)
    for name, meaning in (
        ("--listen-fd", "listening socket"),
        ("--control-fd", "control channel"),
        ("--metrics-fd", "metrics memory"),
        ("--in-flight-fd", "in-flight board"),
    ):
        parser.add_argument(name, type=int, required=True, help=f"descriptor of the inherited {meaning}")
    options = parser.parse_args(argv)
    try:
        descriptors = (options.listen_fd, options.control_fd, options.metrics_fd, options.in_flight_fd)
        uvloop.run(serve(*descriptors, compiled=compiled))
    except GatewayError as error:
        print(f"gateway process: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    # A supervisor of 0.1.0's first days starts its processes this way, and may meet this code by an upgrade under it.
    sys.exit(main(sys.argv[1:], compiled=False))
