"""One attempt of an exchange at one worker: connect, send, judge the beginning of the answer, relay the rest."""

from __future__ import annotations

import asyncio
import sys
import time
from typing import TYPE_CHECKING

from gateway.errors import GatewayError, RequestError, UpstreamConnectError, UpstreamProtocolError
from gateway.protocol import errors_wire
from gateway.protocol.headers import response_headers, upstream_request_headers
from gateway.protocol.observer import Ending
from gateway.protocol.retry import Cause, cause_of_in_band, cause_of_status
from gateway.proxy.answer import Answer
from gateway.proxy.hints import retry_hints
from gateway.proxy.interfaces import AttemptTrace, Lease
from gateway.proxy.limits import Limit
from gateway.proxy.plain import PlainTail, read_plain
from gateway.proxy.upstream import Headers, UpstreamConnection
from gateway.proxy.waiting import Interrupted
from gateway.types import Family, Outcome, Phase, Stage, WorkerAddress, WorkerView

if TYPE_CHECKING:
    from gateway.proxy.exchange import Exchange

_LAST_MARKER_ENDS = (Family.CHAT, Family.COMPLETIONS)
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
    One attempt. `run` returns when the client has been given a whole, good answer, else it raises.

    `sent_at` and `send_at` are CLOCK_MONOTONIC seconds: when the request was handed to the worker's connection, when
    the last piece was handed to the client.
    """

    __slots__ = (
        "_body",
        "_exchange",
        "_force_usage",
        "_fresh",
        "_lease",
        "_reused",
        "active",
        "answer",
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
        self.active = True
        self.answer: Answer | None = None
        self.reading_error = False
        self.sent_at = 0.0
        self.send_at = 0.0
        self.usage: PlainTail | None = None
        self.trace = None if exchange.trace is None else exchange.trace.attempt(lease.worker)

    async def run(self) -> None:
        """
        Make the attempt.

        Raises:
            AttemptFailed: It did not succeed; whether another may follow is for the exchange to decide.
            Interrupted: The exchange has to end.
        """
        worker = self._lease.worker
        pools = self._exchange.relay.pools
        try:
            connection = None if self._fresh else pools.take(worker)
            self._reused = connection is not None
            if connection is None:
                connection = await self._connect(worker)
            try:
                await self._converse(worker, connection)
            finally:
                answer = self.answer
                if connection.reusable:
                    pools.give_back(worker, connection)
                elif answer is not None and answer.done and not connection.complete:
                    pools.linger(worker, connection)
                else:
                    connection.abort()
        finally:
            self.active = False
            if self.trace is not None:
                self._end_trace(self.trace, sys.exception())

    def _end_trace(self, trace: AttemptTrace, error: BaseException | None) -> None:
        failure = ""
        if isinstance(error, AttemptFailed):
            failure = error.cause
        elif error is not None:
            failure = error.outcome if isinstance(error, Interrupted) else Outcome.INTERNAL
        answer = self.answer
        known_by = self._exchange.record.upstream_request_id if answer is not None else ""
        trace.ended(answer.status if answer is not None else 0, known_by, failure)

    # --- the request ----------------------------------------------------------------------------------------------

    async def _connect(self, worker: WorkerView) -> UpstreamConnection:
        exchange = self._exchange
        exchange.enter(Phase.CONNECTING)
        began = time.monotonic()
        task = asyncio.get_running_loop().create_task(exchange.relay.pools.connect(worker))
        task.add_done_callback(lambda _: exchange.wake())
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
        stages = exchange.record.stages
        stages[Stage.CONNECT] = stages.get(Stage.CONNECT, 0.0) + time.monotonic() - began
        return connection

    async def _converse(self, worker: WorkerView, connection: UpstreamConnection) -> None:
        exchange = self._exchange
        view = exchange.view
        assert view is not None
        relay = exchange.relay
        attempt_id = relay.new_id()
        exchange.record.upstream_request_id = attempt_id
        answer = Answer(connection, self._lease, relay.recorder.inter_token(exchange.record.model), exchange.wake)
        answer.observe(exchange.family, view.n, drop_usage=self._force_usage)
        self.answer = answer
        headers = exchange.client.scope["headers"]
        if self.trace is not None:
            headers = self.trace.headers(headers)
        head = request_head(
            exchange.client.scope["method"],
            worker.address,
            exchange.route.path,
            upstream_request_headers(
                headers,
                host=authority(worker.address),
                attempt_id=attempt_id,
                content_length=len(self._body),
                api_key=worker.api_key,
                operator_headers=exchange.policy.pass_operator_fields,
            ),
        )
        connection.send(answer, head, self._body)
        self.sent_at = time.monotonic()
        exchange.enter(Phase.HEADERS)
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
        exchange.enter(Phase.FIRST_EVENT)
        await exchange.until(answer.first_event_known)
        self._judge_beginning(connection, answer)
        exchange.enter(Phase.STREAMING)
        if not client.started:
            headers = response_headers(answer.headers, request_id=exchange.request_id, stream=True)
            data = b"" if answer.over else answer.take()
            self.send_at = exchange.phase_at
            await exchange.sending(client.begin(200, headers, data) if data else client.start(200, headers))
            exchange.wrote()
        direct = client.direct
        if not answer.over:
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
        marker_ends = exchange.family in _LAST_MARKER_ENDS
        if answer.done and not answer.complete and (not marker_ends or answer.lf_due):
            if not marker_ends:
                # Where the marker is the end, it must not go out before it is known that the answer is a good one.
                await self._pass_on(answer)
            exchange.enter(Phase.STREAMING)
            await exchange.until(answer.has_ended)
        await self._conclude(answer)

    async def _pass_on(self, answer: Answer) -> None:
        data = answer.take()
        if data:
            exchange = self._exchange
            self.send_at = time.monotonic()
            await exchange.sending(exchange.client.write(data))
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
        if answer.error is not None and observer.events == 0:
            raise self._lost(connection, answer)
        if answer.over:
            verdict = observer.verdict(clean_end=answer.error is None)
            if verdict.ending is not Ending.COMPLETE and observer.events <= int(observer.done):
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
            tail = None if answer.encoded else read_plain(body)
            self.usage = tail
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
            exchange.enter(Phase.STREAMING)
            await exchange.sending(client.answer(answer.status, headers, body))
        else:
            headers = response_headers(
                answer.headers,
                request_id=exchange.request_id,
                stream=answer.streamed,
                content_length=None if answer.streamed else answer.content_length,
            )
            exchange.enter(Phase.STREAMING)
            await exchange.sending(client.start(answer.status, headers))
            end = b""
            while not answer.over:
                data = answer.take()
                if data:
                    end = (end + data)[-4096:] if len(data) < 4096 else data[-4096:]
                    self.send_at = time.monotonic()
                    await exchange.sending(client.write(data))
                await exchange.until(answer.has_more)
            if answer.error is not None:
                raise self._failed(Cause.CONNECTION_LOST, Outcome.UPSTREAM_INCOMPLETE, f"{name}: {answer.error.detail}")
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


def request_head(method: str, address: WorkerAddress, path: str, headers: Headers) -> bytes:
    """Request line and headers."""
    lines = [f"{method} {address.base_path}{path} HTTP/1.1\r\n".encode("ascii")]
    for name, value in headers:
        lines += (name, b": ", value, b"\r\n")
    lines.append(b"\r\n")
    return b"".join(lines)
