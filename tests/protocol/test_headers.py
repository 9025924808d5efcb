"""Header hygiene: what passes, what is set anew, what is dropped, in both directions."""

from __future__ import annotations

import pytest

from gateway.protocol.headers import (
    Headers,
    client_request_id,
    forwarded_headers,
    request_id_headers,
    response_headers,
)

HOSTILE: Headers = [
    (b"host", b"api.example.test"),
    (b"connection", b"keep-alive, X-Secret , traceparent"),
    (b"keep-alive", b"timeout=5"),
    (b"proxy-connection", b"keep-alive"),
    (b"proxy-authenticate", b"Basic"),
    (b"proxy-authorization", b"Basic x"),
    (b"te", b"trailers"),
    (b"trailer", b"x"),
    (b"transfer-encoding", b"chunked"),
    (b"upgrade", b"h2c"),
    (b"content-length", b"999"),
    (b"x-secret", b"1"),
]
CLIENT: Headers = [
    *HOSTILE,
    (b"authorization", b"Bearer CANARY"),
    (b"x-api-key", b"CANARY"),
    (b"api-key", b"CANARY"),
    (b"cookie", b"CANARY"),
    (b"openai-organization", b"org"),
    (b"x-forwarded-for", b"1.2.3.4"),
    (b"expect", b"100-continue"),
    (b"accept-encoding", b"gzip, br, zstd"),
    (b"content-encoding", b"gzip"),
    (b"x-request-id", b"client-id"),
    (b"x-vllm-priority", b"-5"),
    (b"x-data-parallel-rank", b"1"),
    (b"content-type", b"application/json"),
    (b"accept", b"application/json"),
    (b"user-agent", b"OpenAI/Python"),
    (b"anthropic-version", b"2023-06-01"),
    (b"anthropic-beta", b"a"),
    (b"traceparent", b"00-1-2-01"),
    (b"tracestate", b"a=b"),
    (b"baggage", b"evil\r\nx: y"),
]


def test_c25_c27_a_worker_sees_an_allow_list_and_our_own() -> None:
    """No hop-by-hop header, nothing that Connection names, no credential, no cookie, our Host, no length."""
    sent = forwarded_headers(CLIENT, host="127.0.0.1:9000", api_key="k")

    assert [
        (b"host", b"127.0.0.1:9000"),
        (b"content-type", b"application/json"),
        (b"accept", b"application/json"),
        (b"user-agent", b"OpenAI/Python"),
        (b"anthropic-version", b"2023-06-01"),
        (b"anthropic-beta", b"a"),
        (b"tracestate", b"a=b"),
        (b"accept-encoding", b"identity"),
        (b"authorization", b"Bearer k"),
    ] == sent


def test_c23_the_worker_is_asked_for_plain_bytes_only() -> None:
    """Whatever the client accepts: a compressed stream would be buffered and could not be observed."""
    sent = forwarded_headers(CLIENT, host="w")

    assert [b"identity"] == [value for name, value in sent if name == b"accept-encoding"]
    assert not {b"content-length", b"authorization", b"transfer-encoding", b"content-encoding", b"expect"} & {
        name for name, _ in sent
    }


def test_operator_headers_pass_only_by_policy() -> None:
    """With them a client chooses its place in the queue."""
    with_policy = forwarded_headers(CLIENT, host="w", operator_headers=True)
    without = forwarded_headers(CLIENT, host="w")

    assert (b"x-vllm-priority", b"-5") in with_policy
    assert not any(name.startswith((b"x-vllm", b"x-data")) for name, _ in without)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"abc-DEF_1.2", "abc-DEF_1.2"),
        (b"x" * 128, "x" * 128),
        (b"x" * 129, None),
        (b"", None),
        (b"x" * 100_000, None),
        (b"a\x85b", None),
        (b"a\x1b[31m", None),
        (b'","level":"x', None),
        (b"a%0d%0ab", None),
        (b"caf\xe9", None),
        (b"a b", None),
        (b"abc\n", None),
    ],
)
def test_c33_only_a_harmless_request_id_is_repeated(value: bytes, expected: str | None) -> None:
    """Anything else is replaced by one of our own."""
    assert expected == client_request_id([(b"x-request-id", value)])


def test_c33_two_request_ids_are_none() -> None:
    """Unless they agree."""
    assert client_request_id([]) is None
    assert client_request_id([(b"x-request-id", b"a"), (b"x-request-id", b"b")]) is None
    assert "a" == client_request_id([(b"x-request-id", b"a"), (b"x-request-id", b"a")])


WORKER: Headers = [
    *HOSTILE,
    (b"server", b"uvicorn"),
    (b"date", b"today"),
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"max-age=5"),
    (b"x-accel-buffering", b"yes"),
    (b"set-cookie", b"a=b"),
    (b"location", b"http://10.0.0.1/"),
    (b"access-control-allow-origin", b"*"),
    (b"endpoint-load-metrics", b"JSON {}"),
    (b"x-request-id", b"worker"),
    (b"request-id", b"worker"),
    (b"vary", b"Origin"),
    (b"x-odd", b"a\nb"),
    (b"x-ratelimit-remaining-requests", b"0"),
    (b"openai-processing-ms", b"5"),
]


def test_c18_c21_c25_a_stream_has_no_length_and_is_not_buffered() -> None:
    """No Content-Length whatever the worker said; nothing about the worker's connection or software."""
    sent = response_headers(WORKER, request_id="r1", stream=True, content_length=5)

    assert [
        (b"host", b"api.example.test"),
        (b"vary", b"Origin"),
        (b"x-ratelimit-remaining-requests", b"0"),
        (b"openai-processing-ms", b"5"),
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-cache"),
        (b"x-accel-buffering", b"no"),
        (b"x-request-id", b"r1"),
        (b"request-id", b"r1"),
    ] == sent


def test_c24_the_length_is_ours_and_only_when_known() -> None:
    """Never the worker's copied blindly, never both kinds of framing."""
    known = response_headers(WORKER, request_id="r1", stream=False, content_length=7)
    unknown = response_headers(WORKER, request_id="r1", stream=False)

    assert [b"7"] == [value for name, value in known if name == b"content-length"]
    assert not {b"content-length", b"transfer-encoding"} & {name for name, _ in unknown}
    assert (b"content-type", b"text/event-stream") in known
    assert (b"cache-control", b"max-age=5") in known


def test_c22_a_content_coding_stays_with_its_bytes() -> None:
    """A worker that compresses although it was asked not to is relayed as it is: header and bytes."""
    sent = response_headers([(b"content-encoding", b"gzip")], request_id="r1", stream=True)

    assert (b"content-encoding", b"gzip") in sent


def test_both_names_of_the_request_id_are_sent() -> None:
    """OpenAI's SDKs read one, Anthropic's the other."""
    assert [(b"x-request-id", b"r1"), (b"request-id", b"r1")] == request_id_headers("r1")
