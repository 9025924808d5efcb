"""One attempt of an exchange at one worker: connect, send, judge the beginning of the answer, relay the rest."""

from __future__ import annotations

import asyncio
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final

from gateway.errors import GatewayError, RequestError, UpstreamConnectError, UpstreamProtocolError
from gateway.protocol import errors_wire
from gateway.protocol.headers import forwarded_headers, header_lines, response_headers
from gateway.protocol.observer import Ending
from gateway.protocol.retry import Cause, cause_of_in_band, cause_of_status
from gateway.proxy.answer import Answer
from gateway.proxy.hints import retry_hints
from gateway.proxy.interfaces import AttemptTrace, Lease
from gateway.proxy.known_head import Headers
from gateway.proxy.limits import Limit
from gateway.proxy.plain import PlainTail, read_plain
from gateway.proxy.upstream import UpstreamConnection
from gateway.proxy.waiting import Interrupted
from gateway.types import Family, Outcome, Phase, Stage, WorkerAddress, WorkerView

if TYPE_CHECKING:
    from gateway.proxy.exchange import Exchange

# Looking up a member of an enumeration is a call of a function; these are used for every request.
_CONNECTING: Final = Phase.CONNECTING
_HEADERS: Final = Phase.HEADERS
_STREAMING: Final = Phase.STREAMING
_CONNECT: Final = Stage.CONNECT


MAX_HEADS: Final = 64
"""Workers for which the beginning of a client's requests is kept."""
LAST_MARKER_ENDS: Final = (Family.CHAT, Family.COMPLETIONS)
"""Families whose terminal marker is really the last thing of a stream."""


class AttemptFailed(GatewayError):
    """
    The attempt ended without success.

    `error` is what the client is told if nothing better follows, None when the worker's own bytes have told it;
    `detail` is for the log.
    """

    def __init__(self, cause: Cause, error: RequestError | None, detail: str) -> None:
        self.cause = cause
        self.error = error
        self.detail = detail
        super().__init__(f"{cause}: {detail}")


class Attempt:
    """
    One attempt. `run` returns when the client has been given a whole, good answer, else it raises. What needs no
    waiting (`begin`, `send`) may have been done before it.

    `sent_at` and `send_at` are CLOCK_MONOTONIC seconds: when the request was handed to the worker's connection, when
    the last piece was handed to the client.
    """

    __slots__ = (
        "_body",
        "_client_inside_event",
        "_connecting",
        "_entered",
        "_exchange",
        "_force_usage",
        "_fresh",
        "_lease",
        "_reused",
        "active",
        "answer",
        "connection",
        "reading_error",
        "send_at",
        "sent_at",
        "trace",
        "usage",
    )

    def __init__(self, exchange: Exchange, lease: Lease, body: bytes, *, force_usage: bool, fresh: bool) -> None:
        self._exchange = exchange
        self._lease = lease
        self._body = body
        self._force_usage = force_usage
        self._fresh = fresh
        self._reused = False
        self._connecting: asyncio.Task[UpstreamConnection] | None = None
        self.active = True
        self.connection: UpstreamConnection | None = None
        self.answer: Answer | None = None
        self.reading_error = False
        self.sent_at = 0.0
        self.send_at = 0.0
        self.usage: PlainTail | None = None
        self.trace = None if exchange.trace is None else exchange.trace.attempt(lease.worker)
        self._entered = False
        self._client_inside_event = False

    @property
    def inside_event(self) -> bool:
        """What the client has been sent so far ends inside an event."""
        answer = self.answer
        if answer is not None and answer.writes_directly:
            return answer.mid_event
        return self._client_inside_event

    @property
    def lease(self) -> Lease:
        """The claim on the worker."""
        return self._lease

    @property
    def body(self) -> bytes:
        """What is sent."""
        return self._body

    def __enter__(self) -> Attempt:
        """Count the attempt in flight, unless that was done before."""
        if not self._entered:
            self._entered = True
            self._lease.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lease.__exit__(kind, error, trace)

    async def run(self) -> None:
        """
        Make the attempt.

        Raises:
            AttemptFailed: It did not succeed; whether another may follow is for the exchange to decide.
            Interrupted: The exchange has to end.
        """
        try:
            if self.answer is None:
                if self.connection is None and self._connecting is None:
                    self.begin()
                if self.connection is None:
                    self.connection = await self._connected()
            connection = self.connection
            assert connection is not None
            try:
                if self.answer is None:
                    self.send()
                answer = self.answer
                assert answer is not None
                await self._converse(connection, answer)
            finally:
                self.release(connection)
        finally:
            self.ended(sys.exception())

    def ended(self, error: BaseException | None = None) -> None:
        """The attempt is over, successfully without an error."""
        self.active = False
        if self.trace is not None:
            self._end_trace(self.trace, error)

    def _end_trace(self, trace: AttemptTrace, error: BaseException | None) -> None:
        failure = ""
        if isinstance(error, AttemptFailed):
            failure = error.cause
        elif error is not None:
            failure = error.outcome if isinstance(error, Interrupted) else Outcome.INTERNAL
        answer = self.answer
        known_by = self._exchange.record.upstream_request_id if answer is not None else ""
        trace.ended(answer.status if answer is not None else 0, known_by, failure)

    def give_up(self) -> None:
        """End the use of whatever the attempt holds, because of a defect."""
        self.ended(GatewayError("defect"))
        if self.connection is not None:
            self.connection.abort()
        elif self._connecting is not None:
            self._connecting.cancel()
            self._connecting.add_done_callback(_abandon)

    def release(self, connection: UpstreamConnection) -> None:
        """End the use of the connection: it is kept if another request may be sent on it."""
        worker = self._lease.worker
        pools = self._exchange.relay.pools
        answer = self.answer
        if connection.complete:
            pools.give_back(worker, connection)
        elif answer is not None and answer.done:
            pools.linger(worker, connection)
        else:
            connection.abort()

    # --- the request ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Take a connection from the pool, or start to make one; the exchange is woken when it is made."""
        exchange = self._exchange
        pools = exchange.relay.pools
        worker = self._lease.worker
        if not self._fresh:
            self.connection = pools.take(worker)
            if self.connection is not None:
                self._reused = True
                return
        exchange.enter(_CONNECTING)
        self._connecting = asyncio.get_running_loop().create_task(pools.connect(worker))
        self._connecting.add_done_callback(lambda _: exchange.wake())

    @property
    def connecting(self) -> bool:
        """A connection is being made."""
        return self._connecting is not None and not self._connecting.done()

    def take_connection(self) -> bool:
        """Use the connection that was made, if it was and is sound."""
        task = self._connecting
        if task is None or task.cancelled() or task.exception() is not None or task.result().closed:
            return False
        self.connection = task.result()
        self._note_connecting()
        return True

    async def _connected(self) -> UpstreamConnection:
        exchange = self._exchange
        worker = self._lease.worker
        task = self._connecting
        assert task is not None
        try:
            await exchange.until(task.done)
        except BaseException as error:
            task.cancel()
            task.add_done_callback(_abandon)
            if exchange.take_interrupt(error, Limit.CONNECT):
                raise self._failed(
                    Cause.CONNECT, Outcome.UPSTREAM_CONNECT, f"{worker.name}: connecting took too long"
                ) from None
            raise
        lost = task.exception()
        if isinstance(lost, UpstreamConnectError):
            # Not raised here: its traceback would lead to this frame, which leads to it.
            raise self._failed(Cause.CONNECT, Outcome.UPSTREAM_CONNECT, f"{worker.name}: {lost.detail}")
        connection = task.result()
        if connection.closed:
            # Between its opening and now: nothing was sent on it, and nothing can be.
            raise self._failed(
                Cause.CONNECT, Outcome.UPSTREAM_CONNECT, f"{worker.name}: closed the connection as soon as it was open"
            )
        self._note_connecting()
        return connection

    def _note_connecting(self) -> None:
        exchange = self._exchange
        stages = exchange.record.stages
        stages[_CONNECT] = stages.get(_CONNECT, 0.0) + time.monotonic() - exchange.phase_at

    def send(self) -> None:
        """Send the request on the connection."""
        exchange = self._exchange
        view = exchange.view
        connection = self.connection
        assert view is not None
        assert connection is not None
        worker = self._lease.worker
        relay = exchange.relay
        attempt_id = relay.new_id()
        exchange.record.upstream_request_id = attempt_id
        gaps = relay.recorder.inter_token(exchange.record.model)
        answer = Answer(connection, self._lease, gaps, relay.processor, exchange.wake)
        answer.observe(exchange.family, view.n, drop_usage=self._force_usage)
        self.answer = answer
        head = b"%bx-request-id: %b\r\ncontent-length: %d\r\n\r\n" % (
            self._head_begin(worker),
            attempt_id.encode("ascii"),
            len(self._body),
        )
        connection.send(answer, head, self._body)
        self.sent_at = time.monotonic()
        exchange.enter(_HEADERS)

    def _head_begin(self, worker: WorkerView) -> bytes:
        """The request line and the headers that do not change from one request of this client's to the next."""
        exchange = self._exchange
        client = exchange.client
        if self.trace is None and client.heads is not None:
            key = (worker.name, worker.launch_id)
            known = client.heads.get(key)
            if known is None:
                if len(client.heads) >= MAX_HEADS:
                    client.heads.clear()
                known = client.heads[key] = self._make_head_begin(worker, client.headers)
            return known
        return self._make_head_begin(
            worker, client.headers if self.trace is None else self.trace.headers(client.headers)
        )

    def _make_head_begin(self, worker: WorkerView, headers: Headers) -> bytes:
        exchange = self._exchange
        line = f"{exchange.client.method} {worker.address.base_path}{exchange.route.path} HTTP/1.1\r\n".encode("ascii")
        return line + header_lines(
            forwarded_headers(
                headers,
                host=authority(worker.address),
                api_key=worker.api_key,
                operator_headers=exchange.policy.pass_operator_fields,
            )
        )

    async def _converse(self, connection: UpstreamConnection, answer: Answer) -> None:
        exchange = self._exchange
        await exchange.until(answer.has_head)
        if answer.status == 0:
            raise self._lost(connection, answer)
        if not 200 <= answer.status <= 299:
            await self._error_status(answer)
        elif answer.observer is not None:
            await self._stream(connection, answer)
        else:
            await self._plain(connection, answer)

    # --- answers --------------------------------------------------------------------------------------------------

    async def _error_status(self, answer: Answer) -> None:
        exchange = self._exchange
        self.reading_error = True
        exchange.enter(Phase.FIRST_EVENT)
        await exchange.until(answer.error_body_known)
        body = answer.take()
        content_type = ""
        for name, value in answer.headers:
            if name == b"content-type":
                content_type = value.decode("latin-1")
        retry_after, extra = retry_hints(answer.headers)
        exchange.extra_headers = extra
        error = errors_wire.normalise_upstream_error(answer.status, content_type, body, exchange.family, retry_after)
        if any(name == b"x-should-retry" for name, _ in extra):
            error.should_retry = None
        raise AttemptFailed(
            cause_of_status(answer.status, body), error, f"{self._lease.worker.name}: answered {answer.status}"
        )

    async def _stream(self, connection: UpstreamConnection, answer: Answer) -> None:
        exchange = self._exchange
        client = exchange.client
        if not answer.writes_directly:
            exchange.enter(Phase.FIRST_EVENT)
            await exchange.until(answer.first_event_known)
            self._judge_beginning(connection, answer)
            exchange.enter(_STREAMING)
        if not client.started:
            headers = response_headers(answer.headers, request_id=exchange.request_id, stream=True)
            data = b"" if answer.over else answer.take()
            inside = answer.mid_event
            self.send_at = exchange.phase_at
            await exchange.sending(client.begin(200, headers, data) if data else client.start(200, headers))
            self._client_inside_event = bool(data) and inside
            exchange.wrote()
        direct = client.direct
        if not answer.over and not answer.writes_directly:
            await self._pass_on(answer)
            if direct is not None and direct.open_for_chunks:
                answer.write_directly(direct)
        if answer.writes_directly:
            await exchange.until(answer.is_over)
        else:
            while not answer.over:
                await exchange.until(answer.has_more)
                if not answer.over:
                    await self._pass_on(answer)
        marker_ends = exchange.family in LAST_MARKER_ENDS
        if answer.done and not answer.complete and (not marker_ends or answer.lf_due):
            if not marker_ends:
                # Where the marker is the end, it must not go out before it is known that the answer is a good one.
                await self._pass_on(answer)
            exchange.enter(_STREAMING)
            await exchange.until(answer.has_ended)
        await self._conclude(answer)

    async def _pass_on(self, answer: Answer) -> None:
        data = answer.take()
        if data:
            exchange = self._exchange
            self.send_at = time.monotonic()
            inside = answer.mid_event
            # A send that is broken off while the client's buffer is full has sent nothing of its piece.
            await exchange.sending(exchange.client.write(data))
            self._client_inside_event = inside
            exchange.wrote()

    def _judge_beginning(self, connection: UpstreamConnection, answer: Answer) -> None:
        """
        Raise AttemptFailed if the stream has failed before its first event, or consists of nothing but its marker.

        What came after a good first event is relayed even if the failure is known already: how much the client sees
        must not depend on how the reads fell.
        """
        exchange = self._exchange
        observer = answer.observer
        assert observer is not None
        name = self._lease.worker.name
        if observer.error is not None and answer.begins_with_error():
            raise AttemptFailed(
                cause_of_in_band(observer.error.status),
                errors_wire.from_in_band(observer.error, exchange.family),
                f"{name}: error event: {observer.error.message[:200]}",
            )
        if answer.error is not None and answer.events == 0:
            raise self._lost(connection, answer)
        if answer.over:
            verdict = observer.verdict(clean_end=answer.error is None)
            if verdict.ending is not Ending.COMPLETE and answer.events <= int(observer.done):
                cause = Cause.ABORTED if verdict.ending is Ending.ABORTED else Cause.INCOMPLETE
                raise self._failed(cause, Outcome.UPSTREAM_INCOMPLETE, f"{name}: {verdict.detail}")

    async def _conclude(self, answer: Answer) -> None:
        """The stream is over: end the client's in the way it deserves."""
        exchange = self._exchange
        observer = answer.observer
        assert observer is not None
        name = self._lease.worker.name
        verdict = observer.verdict(clean_end=answer.error is None)
        if verdict.ending is Ending.COMPLETE:
            await exchange.sending(exchange.client.finish(answer.take_rest(keep_done=True)))
            exchange.wrote()
            exchange.record.outcome = Outcome.OK
            self._lease.succeeded()
            return
        told = verdict.error is not None and verdict.error.told and not answer.untold_error
        rest = answer.take_rest(keep_done=told)
        detail = f"{name}: {verdict.detail}"
        if told and answer.error is None:
            await exchange.sending(exchange.client.finish(rest))
            raise AttemptFailed(cause_of_in_band(verdict.error.status if verdict.error else 502), None, detail)
        if rest:
            await exchange.sending(exchange.client.write(rest))
            self._client_inside_event = answer.mid_event
        if verdict.error is not None:
            raise AttemptFailed(
                cause_of_in_band(verdict.error.status), errors_wire.from_in_band(verdict.error, exchange.family), detail
            )
        if answer.error is not None:
            raise self._failed(Cause.CONNECTION_LOST, Outcome.UPSTREAM_INCOMPLETE, f"{name}: {answer.error.detail}")
        cause = Cause.ABORTED if verdict.ending is Ending.ABORTED else Cause.INCOMPLETE
        raise self._failed(cause, Outcome.UPSTREAM_INCOMPLETE, detail)

    async def _plain(self, connection: UpstreamConnection, answer: Answer) -> None:
        exchange = self._exchange
        client = exchange.client
        name = self._lease.worker.name
        exchange.enter(Phase.FIRST_EVENT)
        await exchange.until(answer.plain_known)
        if answer.error is not None:
            raise self._lost(connection, answer)
        if client.started:
            raise self._failed(Cause.PROTOCOL, Outcome.UPSTREAM_ERROR, f"{name}: no event stream though asked for one")
        if answer.complete:
            body = answer.take()
            tail = self.usage = None if answer.encoded else read_plain(body)
            if tail is not None and tail.error is not None:
                raise AttemptFailed(
                    cause_of_in_band(tail.error.status),
                    errors_wire.from_in_band(tail.error, exchange.family),
                    f"{name}: an error with status 200",
                )
            if tail is not None and "abort" in tail.finish_reasons:
                raise self._failed(Cause.ABORTED, Outcome.UPSTREAM_INCOMPLETE, f"{name}: aborted the request")
            headers = response_headers(
                answer.headers, request_id=exchange.request_id, stream=False, content_length=len(body)
            )
            exchange.enter(_STREAMING)
            await exchange.sending(client.answer(answer.status, headers, body))
        else:
            headers = response_headers(
                answer.headers,
                request_id=exchange.request_id,
                stream=answer.streamed,
                content_length=None if answer.streamed else answer.content_length,
            )
            exchange.enter(_STREAMING)
            await exchange.sending(client.start(answer.status, headers))
            end = b""
            while not answer.over:
                data = answer.take()
                if data:
                    end = (end + data)[-4096:] if len(data) < 4096 else data[-4096:]
                    self.send_at = time.monotonic()
                    await exchange.sending(client.write(data))
                await exchange.until(answer.has_more)
            lost = answer.failure()
            if lost is not None:
                raise self._failed(Cause.CONNECTION_LOST, Outcome.UPSTREAM_INCOMPLETE, f"{name}: {lost.detail}")
            rest = answer.take()
            self.usage = None if answer.encoded else read_plain((end + rest)[-4096:])
            await exchange.sending(client.finish(rest))
        exchange.wrote()
        exchange.record.outcome = Outcome.OK
        self._lease.succeeded()

    # --- failures -------------------------------------------------------------------------------------------------

    def _lost(self, connection: UpstreamConnection, answer: Answer) -> AttemptFailed:
        """The connection failed before anything of the answer went to the client."""
        error = answer.error
        assert error is not None
        if self._reused and not connection.answered:
            cause = Cause.STALE_CONNECTION
        elif isinstance(error, UpstreamProtocolError):
            cause = Cause.PROTOCOL
        else:
            cause = Cause.CONNECTION_LOST
        return self._failed(cause, Outcome.UPSTREAM_ERROR, f"{self._lease.worker.name}: {error.detail}")

    @staticmethod
    def _failed(cause: Cause, outcome: Outcome, detail: str) -> AttemptFailed:
        return AttemptFailed(cause, errors_wire.failure(outcome), detail)


def _abandon(task: asyncio.Task[UpstreamConnection]) -> None:
    """Close a connection that came too late."""
    if not task.cancelled() and task.exception() is None:
        task.result().abort()


def authority(address: WorkerAddress) -> str:
    """The worker's Host header."""
    if address.uds is not None:
        return "localhost"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{host}:{address.port}"
