"""
An exchange without a task, as long as it goes as most do.

What needs no waiting is done where it becomes possible: a request whose body has arrived is parsed, routed and sent to
its worker in the client's read callback; a whole answer, the beginning of a stream and its good end go to the client
in the worker's read callback. A task would cost as much as the relaying. For everything else (errors, retries,
departures, time limits, slow clients, answers that come in pieces) the exchange goes over to a task, in the state it is
in: there is one place that knows what to do then, and it is not here.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from gateway.errors import RequestError
from gateway.protocol.headers import header_lines, passed_headers, response_headers
from gateway.protocol.observer import Ending
from gateway.proxy.attempt import LAST_MARKER_ENDS
from gateway.proxy.plain import read_plain
from gateway.types import Outcome, Phase

if TYPE_CHECKING:
    from gateway.proxy.answer import Answer
    from gateway.proxy.attempt import Attempt
    from gateway.proxy.exchange import Exchange
    from gateway.proxy.upstream import UpstreamConnection


# Looking up a member of an enumeration is a call of a function; these are used for every request.
_HEADERS: Final = Phase.HEADERS
_FIRST_EVENT: Final = Phase.FIRST_EVENT
_STREAMING: Final = Phase.STREAMING
_OK: Final = Outcome.OK
_COMPLETE: Final = Ending.COMPLETE
_LOG: Final = logging.getLogger("gateway.proxy")


def begin(exchange: Exchange, body: bytes) -> bool:
    """
    Begin an exchange whose body has arrived.

    Returns:
        False: nothing has happened, a task must serve the request from its beginning (it will end in an error).
    """
    exchange.note_body(body)
    try:
        view = exchange.parse(body)
        exchange.caller.slots.__enter__()
    except RequestError:
        return False
    except Exception:  # a defect of ours: the task meets it again, and has somebody to tell
        return False
    direct = exchange.client.direct
    assert direct is not None
    exchange.client.bytes_in = len(body)
    exchange.inline = True
    exchange.relay.active.add(exchange)
    exchange.count()
    direct.claim(exchange.to_task)
    direct.watch(exchange.client_gone, exchange.client_writable)
    try:
        lease = exchange.choose(view, frozenset())
        if lease is None:
            exchange.to_task()
            return True
        attempt = exchange.attempt_at(lease, exchange.rewritten(view), view)
        attempt.begin()
        if attempt.connection is not None:
            attempt.send()
        exchange.relay.arm_later(exchange)
    except Exception as defect:
        exchange.defect = defect
        exchange.to_task()
    return True


def advance(exchange: Exchange) -> None:
    """Something has happened to the exchange: go on, wait for more, or leave it to a task."""
    try:
        going = _advance(exchange)
    except Exception as defect:
        if exchange.client.complete:
            _LOG.exception("exchange failed by a defect of the gateway after its answer")
            return
        exchange.defect = defect
        going = False
    if not going:
        exchange.to_task()


def _advance(exchange: Exchange) -> bool:
    """False: what is to be done now is a task's."""
    attempt = exchange.attempt
    if attempt is None or exchange.interrupted or exchange.beat_due:
        return False
    answer = attempt.answer
    if answer is None:
        if attempt.connecting:
            return True
        if not attempt.take_connection():
            return False
        attempt.send()
        return True
    if answer.error is not None or answer.untold_error:
        return False
    if answer.status != 200:
        return answer.status == 0
    if answer.observer is not None:
        if answer.over:
            return _end_stream(exchange, attempt, answer)
        return exchange.client.started or _begin_stream(exchange, attempt, answer)
    if answer.streamed or answer.overflowed:
        return False
    if answer.complete:
        return _finish_plain(exchange, attempt, answer)
    if exchange.phase is _HEADERS:
        exchange.enter(_FIRST_EVENT)
    return True


def _finish_plain(exchange: Exchange, attempt: Attempt, answer: Answer) -> bool:
    direct = exchange.client.direct
    assert direct is not None
    if direct.gone:
        # Its connection is being closed, which the loop tells of in its next turn: not one that was served.
        return False
    body = answer.take()
    tail = None if answer.encoded else read_plain(body)
    if tail is not None and (tail.error is not None or "abort" in tail.finish_reasons):
        answer.put_back(body)
        return False
    attempt.usage = tail
    client = exchange.client
    assert attempt.connection is not None
    exchange.enter(_STREAMING)
    client.sent_start(200, len(body), complete=True)
    exchange.inline = False
    direct.unwatch()
    direct.answer(200, _fields(exchange, attempt.connection, answer, len(body)), body)
    _succeeded(exchange, attempt, attempt.connection)
    return True


def _succeeded(exchange: Exchange, attempt: Attempt, connection: UpstreamConnection) -> None:
    """The whole answer has been sent: what a task would do on its way out."""
    exchange.committed_at = time.monotonic()
    exchange.record.outcome = _OK
    attempt.lease.succeeded()
    attempt.release(connection)
    attempt.ended()
    attempt.__exit__(None, None, None)
    exchange.caller.slots.__exit__(None, None, None)
    exchange.account()


def _end_stream(exchange: Exchange, attempt: Attempt, answer: Answer) -> bool:
    """The end of a good stream to a client that takes it at once."""
    client, connection, observer = exchange.client, attempt.connection, answer.observer
    direct = client.direct
    assert direct is not None
    assert observer is not None
    assert connection is not None
    if direct.gone or direct.writer.paused or answer.stalled_at is not None:
        return False
    if client.started and not answer.writes_directly:
        return False
    if not answer.complete:
        if connection.complete:
            return True  # the same read has the end of the message: `on_complete` is next
        if exchange.family not in LAST_MARKER_ENDS or answer.lf_due:
            return False
    if observer.verdict().ending is not _COMPLETE:
        return False
    data = answer.take_rest(keep_done=True)
    if not client.started:
        if not data:
            return False
        _start_stream(exchange, attempt, answer, data)
        data = b""
    client.sent_end(len(data))
    exchange.inline = False
    direct.unwatch()
    direct.end(data)
    _succeeded(exchange, attempt, connection)
    return True


def _begin_stream(exchange: Exchange, attempt: Attempt, answer: Answer) -> bool:
    observer, direct = answer.observer, exchange.client.direct
    assert observer is not None
    assert direct is not None
    if answer.overflowed or observer.error is not None:
        return False
    if answer.events == 0:
        if exchange.phase is _HEADERS:
            exchange.enter(_FIRST_EVENT)
        return True
    _start_stream(exchange, attempt, answer, answer.take())
    answer.write_directly(direct)
    return True


def _start_stream(exchange: Exchange, attempt: Attempt, answer: Answer, data: bytes) -> None:
    """Send the head and the first piece."""
    direct = exchange.client.direct
    assert direct is not None
    exchange.enter(_STREAMING)
    headers = response_headers(answer.headers, request_id=exchange.request_id, stream=True)
    attempt.send_at = exchange.phase_at
    exchange.client.sent_start(200, len(data), complete=False)
    direct.begin(200, header_lines(headers), data)
    exchange.wrote()


def _fields(exchange: Exchange, connection: UpstreamConnection, answer: Answer, length: int) -> bytes:
    """`response_headers` of a whole answer as header lines; those of a head that the worker repeats are made once."""
    known = connection.known_head
    if known is None or known.headers is not answer.headers:
        passed = header_lines(passed_headers(answer.headers, stream=False))
    else:
        if known.lines is None:
            known.lines = header_lines(passed_headers(known.headers, stream=False))
        passed = known.lines
    request_id = exchange.request_id.encode("ascii")
    return b"%bcontent-length: %d\r\nx-request-id: %b\r\nrequest-id: %b\r\n" % (passed, length, request_id, request_id)
