"""A head is taken for known only where the real parser would have found the same."""

from __future__ import annotations

import httptools
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.api.inline import RequestHead
from gateway.protocol import paths
from gateway.proxy.client import Headers
from gateway.proxy.known_head import KnownHead

REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    b"Content-Length: 12\r\nAuthorization: Bearer k\r\n\r\n"
)
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 12\r\nserver: uvicorn\r\n\r\n"
BODY = b'{"model":""}'


class Parsed:
    """What the real parser makes of bytes; `whole` iff they are exactly one message."""

    def __init__(self, kind: type, data: bytes) -> None:
        self.headers: Headers = []
        self.body = b""
        self.messages = 0
        self.error = False
        try:
            kind(self).feed_data(data)
        except httptools.HttpParserError:
            self.error = True

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.messages += 1

    @property
    def whole(self) -> bool:
        return self.messages == 1 and not self.error


def without_length(headers: Headers) -> Headers:
    return [field for field in headers if field[0] != b"content-length"]


def known_request() -> RequestHead:
    route = paths.resolve(b"/v1/chat/completions")
    assert isinstance(route, paths.InferenceRoute)
    head = RequestHead(route, b"/v1/chat/completions", Parsed(httptools.HttpRequestParser, REQUEST + BODY).headers, 12)
    assert head.remember(REQUEST + BODY)
    return head


def known_answer() -> KnownHead:
    head = KnownHead.of(ANSWER + BODY, Parsed(httptools.HttpResponseParser, ANSWER + BODY).headers)
    assert head is not None
    return head


@st.composite
def messages(draw: st.DrawFn, head: bytes) -> bytes:
    """The head with another length and body, and then perhaps something done to it."""
    body = draw(st.binary(max_size=40))
    length = draw(st.sampled_from([b"%d" % len(body), b"%d" % (len(body) + 1), b"0%d" % len(body), b"", b"-1", b"+3"]))
    data = head.replace(b" 12\r\n", b" " + length + b"\r\n") + body
    match draw(st.sampled_from(["whole", "whole", "cut", "changed", "put in", "behind"])):
        case "cut":
            data = data[: draw(st.integers(0, len(data)))]
        case "changed":
            at = draw(st.integers(0, len(data) - 1))
            data = data[:at] + draw(st.binary(min_size=1, max_size=1)) + data[at + 1 :]
        case "put in":
            at = draw(st.integers(0, len(data)))
            data = data[:at] + draw(st.sampled_from([b"\r\n", b"0", b"content-length: 3\r\n", b" "])) + data[at:]
        case "behind":
            data += draw(st.sampled_from([b"\r\n", data, b"x"]))
    return data


@settings(deadline=None, max_examples=300)
@given(messages(REQUEST))
def test_a_known_request_is_what_the_parser_would_have_made_of_it(data: bytes) -> None:
    """Whatever was done to its bytes: the same headers but for the length, the same body, and nothing behind it."""
    head = known_request()
    body = head.body_of(data)

    if body is not None:
        parsed = Parsed(httptools.HttpRequestParser, data)
        assert (parsed.whole, parsed.body) == (True, body)
        assert without_length(parsed.headers) == without_length(head.headers)


@settings(deadline=None, max_examples=300)
@given(messages(ANSWER))
def test_a_known_answer_is_what_the_parser_would_have_made_of_it(data: bytes) -> None:
    """The same for a worker's."""
    head = known_answer()
    body = head.body_of(data)

    if body is not None:
        parsed = Parsed(httptools.HttpResponseParser, data)
        assert (parsed.whole, parsed.body) == (True, body)
        assert without_length(parsed.headers) == without_length(head.headers)


def test_another_length_is_recognised() -> None:
    """The case it is for."""
    assert known_request().body_of(REQUEST.replace(b" 12\r\n", b" 3\r\n") + b"abc") == b"abc"
    assert known_answer().body_of(ANSWER.replace(b" 12\r\n", b" 3\r\n") + b"abc") == b"abc"


def test_what_is_not_plain_is_not_remembered() -> None:
    """An answer of another status, without a length, with an interim answer before it, or in pieces."""
    for data in (
        ANSWER.replace(b"200 OK", b"500 No") + BODY,
        ANSWER.replace(b"content-length: 12\r\n", b"") + BODY,
        b"HTTP/1.1 103 Early Hints\r\n\r\n" + ANSWER + BODY,
        ANSWER + BODY[:-1],
        ANSWER + BODY + b"x",
    ):
        assert KnownHead.of(data, []) is None
