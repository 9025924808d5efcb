"""Answers that the gateway gives by itself, straight to ASGI's `send`."""

from __future__ import annotations

from collections.abc import Iterable

from gateway.errors import RequestError
from gateway.protocol import errors_wire
from gateway.protocol.headers import request_id_headers
from gateway.proxy.client import Headers
from gateway.proxy.direct import Send
from gateway.types import Family

JSON = (b"content-type", b"application/json")


def family_of_path(path: str) -> Family:
    """Whose error envelope a path outside of the inference routes gets."""
    return Family.MESSAGES if path.startswith("/v1/messages") else Family.PLAIN


async def answer(
    send: Send,
    status: int,
    body: bytes,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    content_type: tuple[bytes, bytes] = JSON,
    head: bool = False,
) -> None:
    """Send a whole response; `head`: the headers of a GET without its body."""
    all_headers: Headers = [*headers]
    if status != 204:
        all_headers += [content_type, (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": all_headers})
    await send({"type": "http.response.body", "body": b"" if head else body, "more_body": False})


async def answer_error(
    send: Send,
    family: Family,
    error: RequestError,
    request_id: str,
    headers: Iterable[tuple[bytes, bytes]] = (),
    *,
    close: bool = False,
    head: bool = False,
) -> None:
    """
    Send an error in the family's envelope.

    A request's body need not have been read: the server discards what still comes, so that a client which is busy
    sending lives to read the answer. Only a client that waits for `100 Continue` needs `close`: whether it sends its
    body after this is its choice, and the next request could not be told from it.
    """
    body = errors_wire.error_body(family, error, request_id)
    all_headers: Headers = [
        *errors_wire.error_headers(error),
        *request_id_headers(request_id),
        *headers,
        (b"content-length", b"%d" % len(body)),
    ]
    if close:
        all_headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": error.status, "headers": all_headers})
    await send({"type": "http.response.body", "body": b"" if head else body, "more_body": False})
