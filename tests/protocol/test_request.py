"""Reading a request: what is taken from it, what is refused, and what is let through untouched."""

from __future__ import annotations

import contextlib
import json

import pytest

from gateway.errors import RequestError
from gateway.protocol.request import MAX_MODEL_NAME, RequestView, family_of, parse_request
from gateway.types import Endpoint, Family

JSON = "application/json"


def parse(body: bytes, endpoint: Endpoint = Endpoint.CHAT_COMPLETIONS, content_type: str = JSON) -> RequestView:
    return parse_request(body, endpoint, content_type, max_depth=200)


def refused(body: bytes, endpoint: Endpoint = Endpoint.CHAT_COMPLETIONS, content_type: str = JSON) -> RequestError:
    with pytest.raises(RequestError) as caught:
        parse(body, endpoint, content_type)
    assert caught.value.status == 400
    return caught.value


def test_a_chat_request_gives_what_routing_and_relaying_need() -> None:
    """Every field of the view, and the very bytes of the client."""
    body = (
        b'{"model":"m","stream":true,"stream_options":{"include_usage":true},"n":3,"max_completion_tokens":16,'
        b'"messages":[{"role":"user","content":"hi"}]}'
    )

    view = parse(body)

    assert body is view.body
    assert ("m", True, True, 3, 16) == (view.model, view.stream, view.include_usage, view.n, view.max_tokens)
    assert (Endpoint.CHAT_COMPLETIONS, Family.CHAT) == (view.endpoint, view.family)
    assert b"user\x1fhi\x1e" == view.prefix


def test_an_empty_object_has_defaults_and_no_model() -> None:
    """Absent fields: the worker (or the dispatcher) decides, not the parser."""
    view = parse(b"{}")

    assert (None, False, None, 1, None, b"") == (
        view.model,
        view.stream,
        view.include_usage,
        view.n,
        view.max_tokens,
        view.prefix,
    )


def test_every_endpoint_has_a_family() -> None:
    """A new endpoint cannot be forgotten in the table."""
    assert all(isinstance(family_of(endpoint), Family) for endpoint in Endpoint)
    assert Family.MESSAGES is family_of(Endpoint.COUNT_TOKENS)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"  \n ",
        b"{not json",
        b"[]",
        b'"x"',
        b"null",
        b"1",
        b'{"model":"m"} trailing',
        b'{"model":"m",}',
        b'\xef\xbb\xbf{"model":"m"}',
        '{"model":"m"}'.encode("utf-16"),
        b"{'model':'m'}",
        b'{"model":"m"',
        b'{"a":01}',
        b'{"a":"\x01"}',
        b'{"a":nan}',
    ],
)
def test_c68_what_is_not_one_json_object_is_refused(body: bytes) -> None:
    """Malformed bodies are 400 with an OpenAI type and code."""
    error = refused(body)

    assert "invalid_json" == error.code
    assert "invalid_request_error" == error.type


@pytest.mark.parametrize("value", ["5", '["m"]', '""', "{}", "true", json.dumps("m" * (MAX_MODEL_NAME + 1))])
def test_c68_a_model_that_is_no_name_is_refused(value: str) -> None:
    """The parameter is named, the value is not repeated."""
    error = refused(b'{"model":%s}' % value.encode())

    assert "model" == error.param
    assert len(error.message) < 200


def test_c68_a_null_model_counts_as_absent() -> None:
    """vLLM takes null for its default model."""
    assert parse(b'{"model":null}').model is None


@pytest.mark.parametrize("value", [b'"yes"', b"1", b"[]", b'"true"'])
def test_c68_a_stream_flag_that_is_no_boolean_is_refused(value: bytes) -> None:
    """The gateway and the worker must not differ in whether the answer is a stream."""
    assert "stream" == refused(b'{"model":"m","stream":%s}' % value).param


def test_a_null_stream_flag_is_false() -> None:
    """As vLLM reads it."""
    assert not parse(b'{"stream":null}').stream


@pytest.mark.parametrize("value", [b"5", b'"x"', b"[]", b'{"include_usage":"yes"}'])
def test_stream_options_of_a_wrong_type_are_refused(value: bytes) -> None:
    """Otherwise the usage event might be dropped although the client meant to ask for it."""
    assert "stream_options" == refused(b'{"stream":true,"stream_options":%s}' % value).param


@pytest.mark.parametrize("options", [b"null", b"{}", b'{"include_usage":null}', b'{"x":1}'])
def test_usage_not_asked_for_is_none(options: bytes) -> None:
    """Null and absent are the same to vLLM."""
    assert parse(b'{"stream_options":%s}' % options).include_usage is None


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
def test_c68_another_content_type_is_refused_by_name(content_type: str) -> None:
    """curl -d without a header is the usual cause; the message says what to send."""
    error = refused(b'{"model":"m"}', content_type=content_type)

    assert "application/json" in error.message


@pytest.mark.parametrize("content_type", ["application/json; charset=utf-8", "Application/JSON", "application/json;"])
def test_json_is_recognised_in_every_spelling(content_type: str) -> None:
    """Media types ignore case and may carry parameters."""
    assert "m" == parse(b'{"model":"m"}', content_type=content_type).model


@pytest.mark.parametrize(
    "text", [b"\xff", b"\xc0\x80", b"\xed\xa0\xbd", b"caf\xe9", b"\xf0\x9f\x98"], ids=lambda text: text.hex()
)
def test_c69_invalid_utf8_is_refused(text: bytes) -> None:
    """Stray, overlong, surrogate, Latin-1 and truncated bytes."""
    error = refused(b'{"model":"m","messages":[{"role":"user","content":"' + text + b'"}]}')

    assert "UTF-8" in error.message


def test_c69_a_character_across_the_checking_step_is_valid() -> None:
    """The check runs in steps of one mebibyte; a character may lie across."""
    body = b'{"model":"m","x":"' + b"a" * (1024 * 1024 - 19) + "é".encode() + b'"}'

    assert "m" == parse(body).model


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"a","model":"b"}',
        b'{"model":"a","x":[1,{"model":2}],"model":"a"}',
        b'{"model":"a","mod\\u0065l":"b"}',
        b'{"\\u006dodel":"a" , "model" : "b"}',
        b'{"model":"a","pad":"' + b"x" * 70_000 + b'","model":"b"}',
    ],
)
def test_a_model_named_twice_is_refused(body: bytes) -> None:
    """Readers differ in which wins, so a key could be checked for one model and served by another."""
    assert ("duplicate_field", "model") == (refused(body).code, refused(body).param)


def test_a_stream_flag_given_twice_is_refused() -> None:
    """Also when both say the same, and in a large body."""
    assert "stream" == refused(b'{"stream":true,"stream":true}').param
    assert "stream" == refused(b'{"stream":true,"p":[' + b"1," * 50_000 + b'1],"stream":true}').param


def test_the_same_names_further_down_are_no_duplicates() -> None:
    """Tool schemas and message texts name models, too."""
    body = json.dumps(
        {"tools": [{"model": 1}, {"model": 2, "stream": 3}], "model": "m", "x": '"model":"y"', "stream": True}
    ).encode()

    assert ("m", True) == (parse(body).model, parse(body).stream)


def test_other_keys_may_repeat() -> None:
    """Only what decides routing must be unique; the last wins, as in vLLM."""
    assert 2 == parse(b'{"n":1,"model":"m","n":2,"model_x":1,"model\\u0041":2}').n


@pytest.mark.parametrize(
    "seed", ["9007199254740993", "18446744073709551616", "1e400", "1e-7", "-0", "1" * 5000, "NaN", "-Infinity"]
)
def test_c52_numbers_pass_whatever_their_size(seed: str) -> None:
    """Nothing is decoded that is not needed, and what Python's JSON takes is taken."""
    body = b'{"seed":%s,"model":"m"}' % seed.encode()

    assert ("m", body) == (parse(body).model, parse(body).body)


@pytest.mark.parametrize("field", ["n", "max_tokens"])
@pytest.mark.parametrize("value", ["null", '"5"', "0", "-1", "1.5", "1e400", "9" * 400, "9" * 10_000])
def test_c51_counts_the_gateway_cannot_use_are_left_to_the_worker(field: str, value: str) -> None:
    """Zeros, nulls and nonsense reach vLLM, whose answer is the authority."""
    view = parse(b'{"%s":%s}' % (field.encode(), value.encode()))

    assert (1, None) == (view.n, view.max_tokens)


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        (Endpoint.CHAT_COMPLETIONS, {"max_completion_tokens": 16}, 16),
        (Endpoint.CHAT_COMPLETIONS, {"max_tokens": 32, "max_completion_tokens": 16}, 16),
        (Endpoint.CHAT_COMPLETIONS, {"max_tokens": 32, "max_completion_tokens": None}, 32),
        (Endpoint.COMPLETIONS, {"max_tokens": 16, "max_completion_tokens": 4}, 16),
        (Endpoint.RESPONSES, {"max_output_tokens": 16, "max_tokens": 4}, 16),
        (Endpoint.MESSAGES, {"max_tokens": 16}, 16),
        (Endpoint.EMBEDDINGS, {"max_tokens": 16}, None),
    ],
)
def test_c53_the_limit_is_read_where_the_endpoint_has_it(
    endpoint: Endpoint, body: dict[str, object], expected: int | None
) -> None:
    """max_completion_tokens wins over max_tokens, and each family has its own name."""
    assert expected == parse(json.dumps(body).encode(), endpoint).max_tokens


@pytest.mark.parametrize(
    "text", ["\\ud83d", "\\uDE00x", "a\\ud83d\\n", '\\\\ud83d \\" \\ud83d', "\\ud83d\\ud83d\\ude00"]
)
def test_c71_lone_surrogates_pass(text: str) -> None:
    """A truncated emoji in an agent's history is no reason to refuse what vLLM accepts."""
    body = b'{"messages":[{"role":"user","content":"%s"}],"model":"m"}' % text.encode()

    view = parse(body)

    assert ("m", body) == (view.model, view.body)
    assert view.prefix.startswith(b"user\x1f")


def test_c71_leniency_ends_where_looking_would_be_dear() -> None:
    """A huge body that is not strict JSON is refused instead of being walked string by string."""
    error = refused(b'{"a":["\\ud83d",' + b'"",' * 110_000 + b"1]}")

    assert "invalid_json" == error.code


@pytest.mark.parametrize("depth", [201, 1001, 100_000])
@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_c70_deep_nesting_is_refused(depth: int, opening: bytes, closing: bytes) -> None:
    """Without recursion, whether or not the brackets are closed."""
    nested = opening * depth

    assert "json_too_complex" == refused(b'{"model":"m","x":' + nested + b"1" + closing * depth + b"}").code
    assert "json_too_complex" == refused(b'{"model":"m","x":' + nested).code


def test_c70_a_stack_that_ends_before_the_limit_is_no_crash() -> None:
    """With the largest configurable limit the decoder's own stack check answers."""
    body = b'{"x":' + b"[" * 998 + b"1" + b"]" * 998 + b"}"
    found: list[object] = []

    with contextlib.suppress(RequestError):
        found.append(parse_request(body, Endpoint.CHAT_COMPLETIONS, JSON, max_depth=1000))
    with pytest.raises(RequestError, match="levels"):
        parse_request(body, Endpoint.CHAT_COMPLETIONS, JSON, max_depth=998)

    assert len(found) <= 1


def test_no_message_repeats_the_body() -> None:
    """A canary in any place of a refused body stays out of the message."""
    for body in (
        b'{"model":"CANARY"',
        b'{"CANARY":01}',
        b'{"stream":"CANARY"}',
        b'{"model":["CANARY"]}',
        b'["CANARY"]',
        b'{"stream_options":"CANARY"}',
        b'{"model":"CANARY","model":"CANARY"}',
        b"CANARY",
    ):
        assert "CANARY" not in str(refused(body))


def test_c49_unknown_fields_and_the_body_stay_as_they_are() -> None:
    """The view keeps the very object that came in."""
    body = (
        b'{"model":"m","messages":[],"chat_template_kwargs":{"enable_thinking":false},"guided_json":{"type":"object"},'
        b'"x_future":{"a":[1,null]}}'
    )

    assert body is parse(body).body
