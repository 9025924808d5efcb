"""
One exchange, from the client's first byte to its accounting, owned by one coroutine.

The coroutine sleeps on one future. Callbacks (the worker's answer, the client's departure, the timer, a shutdown) only
set flags and wake it, so there is one place that decides. What it acquires it holds in nested `with` blocks: the watch
on the client, the lease on the worker, the connection; they are released in reverse order whatever happens.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from gateway.errors import Rejected, RequestError
from gateway.protocol import errors_wire, splice
from gateway.protocol.headers import client_request_id, request_id_headers, response_headers
from gateway.protocol.paths import InferenceRoute
from gateway.protocol.request import RequestView, family_of, parse_request
from gateway.protocol.retry import Action, Cause, decide
from gateway.protocol.splice import forces_usage
from gateway.proxy import inline
from gateway.proxy.accounting import complete_record
from gateway.proxy.attempt import Attempt, AttemptFailed
from gateway.proxy.body import decode_body
from gateway.proxy.client import ClientGone, ClientSide, Headers
from gateway.proxy.deadlines import heartbeat_fits, next_deadline
from gateway.proxy.direct import Receive, Send
from gateway.proxy.limits import Limit, LimitTimer
from gateway.proxy.policy import ModelPolicy
from gateway.proxy.waiting import Interrupted, Waiting
from gateway.record import ExchangeRecord
from gateway.types import Outcome, Phase, RetryReason, Stage

if TYPE_CHECKING:
    from gateway.proxy.interfaces import Caller, Lease
    from gateway.proxy.relay import Relay

# Looking up a member of an enumeration is a call of a function; these are used for every request.
_BODY: Final = Phase.BODY
_QUEUED: Final = Phase.QUEUED
_STREAMING: Final = Phase.STREAMING
_PARSE: Final = Stage.PARSE
_ROUTING: Final = Stage.ROUTING
_ADMISSION: Final = Stage.ADMISSION
_LOG: Final = logging.getLogger("gateway.proxy")
_DEATHS: Final = (Cause.CONNECTION_LOST, Cause.INCOMPLETE, Cause.ABORTED)
"""Failures in which the worker may have died of this request."""
_WORKER_LIMITS: Final = (Limit.FIRST_BYTE, Limit.FIRST_TOKEN, Limit.IDLE)

HEARTBEAT: Final = b": keep-alive\n\n"
LARGE_BODY_BYTES: Final = 1024 * 1024


class Exchange(Waiting):
    """One request and its answer. `run` is called once."""

    __slots__ = (
        "attempt",
        "body_done_at",
        "caller",
        "committed_at",
        "counted",
        "defect",
        "extra_headers",
        "family",
        "phase",
        "phase_at",
        "policy",
        "record",
        "relay",
        "request_id",
        "route",
        "streaming_at",
        "trace",
        "view",
    )

    def __init__(self, relay: Relay, route: InferenceRoute, client: ClientSide, caller: Caller) -> None:
        super().__init__(client)
        self.relay = relay
        self.route = route
        self.caller = caller
        self.family = family_of(route.endpoint)
        self.request_id = client_request_id(client.headers) or relay.new_id()
        self.policy: ModelPolicy = relay.policy.fallback
        self.view: RequestView | None = None
        self.attempt: Attempt | None = None
        self.counted = False
        self.defect: Exception | None = None
        now = time.monotonic()
        self.body_done_at = now
        self.phase = _BODY
        self.phase_at = now
        self.record = ExchangeRecord(self.request_id, route.endpoint, self.family, now, tenant=caller.tenant)
        tracer = relay.tracer
        self.trace = None if tracer is None else tracer.request(self.record, client.method, client.headers)
        self.committed_at = 0.0
        self.streaming_at = 0.0
        self.extra_headers: Headers = []

    # --- the whole ------------------------------------------------------------------------------------------------

    async def run(self, receive: Receive, send: Send) -> None:
        """Serve the exchange; never raises but for cancellation and defects of the server below."""
        self.client.attach(receive, send)
        self.relay.active.add(self)
        await self._guarded(self._whole())

    async def carry_on(self, receive: Receive, send: Send) -> None:
        """Serve the rest of what `proxy.inline` has begun."""
        self.client.attach(receive, send)
        await self._guarded(self._rest())

    def to_task(self) -> None:
        """From now on a task serves this exchange, which was begun without one."""
        self.inline = False
        direct = self.client.direct
        assert direct is not None
        direct.continue_in_task(self.carry_on)

    async def _whole(self) -> None:
        relay = self.relay
        body = await self.client.read_body(
            relay.policy.max_body_bytes, relay.policy.body_stall_s, relay.policy.body_total_s, relay.bodies
        )
        body = await self._decoded(body)
        view = self.parse(body)
        await self._breathe(body)
        del body
        self.count()
        self._task = asyncio.current_task()
        self._timer = LimitTimer(lambda: next_deadline(self), self._expired)
        with self.client.watched(self.client_gone, self.client_writable), self.caller.slots:
            await self._serve(view, None)

    async def _rest(self) -> None:
        self._task = asyncio.current_task()
        if self._timer is None:
            self._timer = LimitTimer(lambda: next_deadline(self), self._expired)
        self._arm_due = True
        view, direct = self.view, self.client.direct
        assert view is not None
        assert direct is not None
        with ExitStack() as held:
            held.callback(direct.unwatch)
            held.push(self.caller.slots)
            if self.defect is not None:
                if self.attempt is not None:
                    held.push(self.attempt)
                    self.attempt.give_up()
                raise self.defect
            await self._serve(view, self.attempt)

    async def _guarded(self, work: Coroutine[None, None, None]) -> None:
        """Do the work, and tell the client, the metrics and the log how it ended."""
        record = self.record
        try:
            try:
                await work
            except RequestError as error:
                await self._refuse(error)
                error.__traceback__ = None  # see `account`
            except Interrupted as interrupt:
                await self._interrupted(interrupt)
            except ClientGone:
                record.outcome = Outcome.CLIENT_CLOSED
                record.disconnect = self.phase
        except asyncio.CancelledError:
            if record.outcome is Outcome.INTERNAL:
                record.outcome = Outcome.SHUTDOWN
            raise
        except Exception:
            _LOG.exception("exchange failed by a defect of the gateway")
            record.outcome = Outcome.INTERNAL
            await self._refuse(errors_wire.failure(Outcome.INTERNAL))
        finally:
            self.account()

    def inline_wake(self) -> None:
        """See `Waiting`."""
        inline.advance(self)

    def arm(self) -> None:
        """Begin to watch the time limits."""
        if self._timer is None:
            self._timer = LimitTimer(lambda: next_deadline(self), self._expired)
        self._arm_due = False
        self._timer.arm()

    def count(self) -> None:
        """The exchange is in flight, and its model is known."""
        self.counted = True
        self.relay.recorder.started(self.record.model, self.record.tenant)

    def account(self) -> None:
        """The exchange has ended: complete its record and hand it over."""
        relay = self.relay
        if self._timer is not None:
            self._timer.cancel()
        relay.active.discard(self)
        relay.unarmed.discard(self)
        relay.bodies.give_back(self.client.held_bytes)
        self._task = None
        if not self.counted:
            self.count()
        complete_record(self)
        if self.trace is not None:
            self.trace.ended()
        # Exchange, attempt and answer refer to each other, and what was raised to the frames it came through, which
        # refer to the exchange: untie them, so that no collector has to.
        self.attempt = self._timer = self._interrupt = self.defect = None
        relay.recorder.finished(self.record)

    def note_body(self, body: bytes) -> None:
        """The whole body has arrived."""
        self.body_done_at = time.monotonic()
        self.record.bytes_in = len(body)
        self.record.body_s = self.body_done_at - self.record.started_at_s

    async def _decoded(self, body: bytes) -> bytes:
        """The body without its content coding, decoded beside the event loop: what comes out may be large."""
        self.note_body(body)
        await self._breathe(body)
        for name, value in self.client.headers:
            if name == b"content-encoding":
                coding, limit = value.decode("latin-1"), self.relay.policy.max_body_bytes
                decoded = await asyncio.to_thread(decode_body, body, coding, limit)
                self.client.hold(len(decoded), self.relay.bodies)
                return decoded
        return body

    @staticmethod
    async def _breathe(body: bytes) -> None:
        """Joining, parsing, rewriting and sending a large body each take a while: let other streams go on between."""
        if len(body) > LARGE_BODY_BYTES:
            await asyncio.sleep(0)

    def parse(self, body: bytes) -> RequestView:
        """
        Read the request and find its model.

        Raises:
            RequestError: It cannot be served.
        """
        began = time.monotonic()
        record = self.record
        relay = self.relay
        record.body = body[: relay.policy.logged_body_bytes]
        if relay.dispatcher.draining:
            record.outcome = Outcome.SHUTDOWN
            raise errors_wire.failure(Outcome.SHUTDOWN, retry_after_s=1)
        content_type = "application/json"
        for name, value in self.client.headers:
            if name == b"content-type":
                content_type = value.decode("latin-1")
        view = parse_request(body, self.route.endpoint, content_type, max_depth=relay.policy.max_json_depth)
        record.stream = view.stream
        if view.model is None:
            raise RequestError(400, "The request names no model.", code="missing_required_parameter", param="model")
        model = relay.dispatcher.resolve(view.model)
        allowed = self.caller.models
        if model is not None and allowed is not None and model.name not in allowed:
            # To this caller there is no such model, as in its list of models: an answer of its own (403) would let
            # anybody with a key find out what else is served.
            record.detail = f"the key may not use the model {model.name}"
            model = None
        if model is None:
            or_denied = "" if allowed is None else " or is not for this API key"
            raise RequestError(
                404,
                f"The model {view.model[:200]!r} does not exist{or_denied}. GET /v1/models lists the models.",
                code="model_not_found",
                param="model",
                should_retry=False,
            )
        record.model = model.name
        self.policy = relay.policy.of(model.name)
        self.view = view
        record.stages[_PARSE] = time.monotonic() - began
        return view

    # --- attempts -------------------------------------------------------------------------------------------------

    def rewritten(self, view: RequestView) -> bytes:
        """The body as the worker gets it."""
        record = self.record
        policy = self.policy
        return splice.apply(
            view,
            splice.Rewrites(
                model=record.model if record.model != view.model else None,
                force_usage=forces_usage(view),
                strip_operator_fields=not policy.pass_operator_fields,
                default_max_tokens=policy.default_max_tokens,
                max_tokens_limit=policy.max_tokens_limit,
            ),
        )

    def choose(self, view: RequestView, excluded: frozenset[str]) -> Lease | None:
        """A lease on a worker outside `excluded`, None when there is none."""
        began = time.monotonic()
        lease = self.relay.dispatcher.lease(self.record.model, view, excluded, self.body_done_at)
        stages = self.record.stages
        stages[_ROUTING] = stages.get(_ROUTING, 0.0) + time.monotonic() - began
        return lease

    def attempt_at(self, lease: Lease, body: bytes, view: RequestView, *, fresh: bool = False) -> Attempt:
        """The next attempt, counted in flight."""
        record = self.record
        record.attempts += 1
        record.worker = lease.worker.name
        record.policy = lease.policy
        record.decision = lease.reason
        self.extra_headers = []
        attempt = self.attempt = Attempt(self, lease, body, force_usage=forces_usage(view), fresh=fresh)
        return attempt.__enter__()

    async def _serve(self, view: RequestView, begun: Attempt | None) -> None:
        record = self.record
        policy = self.policy
        body = begun.body if begun is not None else self.rewritten(view)
        await self._breathe(body)
        excluded: frozenset[str] = frozenset()
        retries_left = policy.retries
        stale_retried = False
        deaths = 0
        failed: AttemptFailed | None = None
        fresh = False
        retry: RetryReason | None = None
        while True:
            attempt, begun = begun, None
            if attempt is None:
                chosen = self.choose(view, excluded)
                if chosen is None:
                    chosen = await self._queued(view, excluded, failed)
                if retry is not None:
                    # Only now: without another worker nothing is tried again, and the client may.
                    record.retries.append(retry)
                attempt = self.attempt_at(chosen, body, view, fresh=fresh)
            lease = attempt.lease
            with attempt:
                try:
                    await attempt.run()
                except AttemptFailed as failure:
                    failed = failure.with_traceback(None)  # which leads here, where `failed` leads to it
                    if failure.cause in _DEATHS:
                        deaths += 1
                    verdict = decide(
                        self.phase,
                        failure.cause,
                        retries_left=retries_left,
                        deaths=deaths,
                        stale_retried=stale_retried,
                    )
                    if verdict.blames_worker:
                        lease.failed(verdict.reason or verdict.outcome, failure.detail)
                    record.detail = failure.detail
                    record.outcome = verdict.outcome
                    if verdict.action is Action.FAIL or verdict.reason is None:
                        if failure.error is not None:
                            raise self._final(failure.error) from None
                        return
                except Interrupted as interrupt:
                    if interrupt.limit in _WORKER_LIMITS:
                        lease.failed(Outcome.UPSTREAM_TIMEOUT, f"time limit passed: {interrupt.limit}")
                    raise
                else:
                    return
            retry = verdict.reason
            fresh = verdict.action is Action.FRESH_CONNECTION
            if fresh:
                stale_retried = True
            else:
                retries_left -= 1
                excluded |= {lease.worker.name}

    async def _queued(self, view: RequestView, excluded: frozenset[str], failed: AttemptFailed | None) -> Lease:
        """Wait in line for a lease, which counts already. Raises RequestError when there is none to be had."""
        record = self.record
        began = time.monotonic()
        self.enter(_QUEUED)
        try:
            with self.relay.dispatcher.queue(
                record.model, view, excluded, self.body_done_at, self.wake, again=failed is not None
            ) as turn:
                await self.until(turn.over)
                lease = turn.take()
        finally:
            record.stages[_ADMISSION] = record.stages.get(_ADMISSION, 0.0) + time.monotonic() - began
        if lease is not None:
            return lease
        if failed is not None and failed.error is not None:
            raise self._final(failed.error)
        record.outcome = Outcome.NO_WORKER
        raise errors_wire.failure(Outcome.NO_WORKER, retry_after_s=5)

    def _final(self, error: RequestError) -> RequestError:
        """The error to end with: when the gateway has tried again itself, clients need not multiply that."""
        hinted = error.retry_after_s is not None or any(name == b"x-should-retry" for name, _ in self.extra_headers)
        if self.record.retries and error.should_retry is None and not hinted and error.status >= 500:
            error.should_retry = False
        return error

    # --- waiting --------------------------------------------------------------------------------------------------

    def enter(self, phase: Phase) -> None:
        """The exchange does something else from now on; its time limit counts as soon as it waits."""
        self.phase = phase
        self.phase_at = time.monotonic()
        if phase is _STREAMING and not self.streaming_at:
            self.streaming_at = self.phase_at
        self._arm_due = True

    def client_gone(self) -> None:
        """The client has left."""
        self.record.disconnect = self.phase
        self.interrupt(Outcome.CLIENT_CLOSED)

    def client_writable(self) -> None:
        """The client's buffer has drained."""
        attempt = self.attempt
        if attempt is not None and attempt.answer is not None:
            attempt.answer.writable()

    # --- time -----------------------------------------------------------------------------------------------------

    def client_written_at(self) -> float:
        """When the client was last sent anything, 0.0 if never."""
        answer = self.attempt.answer if self.attempt is not None else None
        return max(self.committed_at, answer.last_write_at if answer is not None else 0.0)

    def wrote(self) -> None:
        """The client has just been sent something: the next heartbeat is due later."""
        self.committed_at = time.monotonic()
        if self.policy.heartbeat_s > 0 and self._timer is not None:
            self._timer.arm()

    def _expired(self, limit: Limit) -> None:
        attempt = self.attempt
        # An ended attempt's answer must not be told anything: its connection may be somebody else's by now.
        answer = attempt.answer if attempt is not None and attempt.active else None
        if limit is Limit.HEARTBEAT:
            if answer is not None and answer.writes_directly:
                if not answer.heartbeat(HEARTBEAT):
                    self.wrote()
            else:
                self._beat_due = True
                self.wake()
        elif limit is Limit.LINGER:
            if answer is not None:
                answer.complete = True
            self.wake()
        elif limit is Limit.STALLED_CLIENT:
            self.record.detail = "the client took nothing for too long"
            self.interrupt(Outcome.CLIENT_CLOSED, limit)
        elif limit is Limit.ERROR_BODY:
            if answer is not None:
                answer.complete = True
            self.wake()
        else:
            self.interrupt(Outcome.UPSTREAM_TIMEOUT, limit)

    async def _heartbeat(self) -> None:
        answer = self.attempt.answer if self.attempt is not None else None
        if not heartbeat_fits(self) or (answer is not None and answer.mid_event):
            self.wrote()
            return
        if not self.client.started:
            await self.sending(
                self.client.start(
                    200,
                    response_headers(
                        [(b"content-type", b"text/event-stream; charset=utf-8")],
                        request_id=self.request_id,
                        stream=True,
                    ),
                )
            )
        await self.sending(self.client.write(HEARTBEAT))
        self.wrote()

    # --- endings --------------------------------------------------------------------------------------------------

    async def _interrupted(self, interrupt: Interrupted) -> None:
        record = self.record
        record.outcome = interrupt.outcome
        if interrupt.outcome is Outcome.CLIENT_CLOSED:
            if record.disconnect is None:
                record.disconnect = self.phase
            if interrupt.limit is not None:
                self.client.break_off()
            return
        if interrupt.limit is not None:
            record.detail = f"time limit passed: {interrupt.limit}"
        await self._refuse(errors_wire.failure(interrupt.outcome))

    async def _refuse(self, error: RequestError) -> None:
        """Tell the client of a failure, in the form that is still possible."""
        record = self.record
        client = self.client
        record.error_code = error.code or error.type
        if isinstance(error, Rejected):
            record.outcome = Outcome.REJECTED
            record.rejection = error.reason
        elif record.outcome is Outcome.INTERNAL and error.status < 500:
            record.outcome = Outcome.CLIENT_ERROR
        if client.complete or record.disconnect is not None:
            return
        self._interrupt = None
        try:
            async with asyncio.timeout(self.policy.limits.last_words_s):
                await self._tell(error)
        except TimeoutError:
            client.break_off()

    async def _tell(self, error: RequestError) -> None:
        client = self.client
        if not client.started:
            body = errors_wire.error_body(self.family, error, self.request_id)
            headers = errors_wire.error_headers(error)
            headers += [*self.extra_headers, *request_id_headers(self.request_id)]
            headers.append((b"content-length", b"%d" % len(body)))
            if self.relay.dispatcher.draining or (client.expects_continue and not client.bytes_in):
                headers.append((b"connection", b"close"))
            await client.answer(error.status, headers, body)
            return
        attempt = self.attempt
        answer = attempt.answer if attempt is not None else None
        observer = answer.observer if answer is not None else None
        inside = attempt is None or attempt.inside_event
        if self.phase is _STREAMING and (answer is None or inside or observer is None):
            # Nothing that could be written here would be read as an error: break the framing instead.
            client.break_off()
            return
        sequence = observer.next_sequence if observer is not None else 0
        await client.finish(errors_wire.error_event(self.family, error, self.request_id, sequence))
