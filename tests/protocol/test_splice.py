"""Rewriting: equal to editing the parsed document, and every other byte as it was."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.protocol.members import decode_members, scan_members
from gateway.protocol.request import RequestView, parse_request
from gateway.protocol.splice import OPERATOR_FIELDS, Rewrites, apply, forces_usage
from gateway.types import Endpoint

JSON = "application/json"
ALL = Rewrites("public", True, True, 7, 100)


def parse(body: bytes, endpoint: Endpoint = Endpoint.CHAT_COMPLETIONS) -> RequestView:
    return parse_request(body, endpoint, JSON, max_depth=200)


def rewritten(body: bytes, rewrites: Rewrites, endpoint: Endpoint = Endpoint.CHAT_COMPLETIONS) -> bytes:
    return apply(parse(body, endpoint), rewrites)


SPACES = st.sampled_from(["", "", "", " ", "\n", "\t", "\r\n  "])
TEXT = st.text(st.sampled_from('"\\/{}[],:ab é😀\n\u2028'), max_size=6)
NAMES = st.sampled_from(
    ["model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n", *OPERATOR_FIELDS]
)
SCALARS = st.none() | st.booleans() | st.integers() | TEXT
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT | NAMES, inner, max_size=3), max_leaves=6
)
REWRITES = st.builds(
    Rewrites,
    model=st.none() | st.just('pub"é'),
    force_usage=st.booleans(),
    strip_operator_fields=st.booleans(),
    default_max_tokens=st.none() | st.integers(1, 200),
    max_tokens_limit=st.none() | st.integers(1, 200),
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, object]:
    """Request-like objects: the special names with values of their types, others with anything."""
    document: dict[str, object] = draw(
        st.dictionaries(TEXT | st.sampled_from(sorted(OPERATOR_FIELDS)), VALUES, max_size=5)
    )
    special: dict[str, st.SearchStrategy[object]] = {
        "model": st.sampled_from(["m", 'pub"é']),
        "stream": st.none() | st.booleans(),
        "stream_options": st.none()
        | st.fixed_dictionaries({}, optional={"include_usage": st.none() | st.booleans(), "x": VALUES}),
        "max_tokens": st.none() | st.integers(0, 400),
        "max_completion_tokens": st.none() | st.integers(0, 400),
    }
    for name, values in special.items():
        if draw(st.booleans()):
            document[name] = draw(values)
    order = draw(st.permutations(list(document)))
    return {name: document[name] for name in order}


def spell(draw: st.DrawFn, value: object) -> str:
    """One of the many spellings of a JSON value."""
    if isinstance(value, dict):
        pairs = [
            f"{spell_text(draw, key)}{draw(SPACES)}:{draw(SPACES)}{spell(draw, inner)}" for key, inner in value.items()
        ]
        return "{" + draw(SPACES) + f"{draw(SPACES)},{draw(SPACES)}".join(pairs) + draw(SPACES) + "}"
    if isinstance(value, list):
        return "[" + ",".join(draw(SPACES) + spell(draw, inner) for inner in value) + draw(SPACES) + "]"
    if isinstance(value, str):
        return spell_text(draw, value)
    return json.dumps(value)


def spell_text(draw: st.DrawFn, text: str) -> str:
    if draw(st.integers(0, 3)) == 0 and all(ord(char) < 0x10000 for char in text):
        return '"' + "".join(f"\\u{ord(char):04x}" for char in text) + '"'
    return json.dumps(text, ensure_ascii=draw(st.booleans()))


@st.composite
def spelt(draw: st.DrawFn) -> tuple[dict[str, object], bytes]:
    document = draw(documents())
    return document, (draw(SPACES) + spell(draw, document) + draw(SPACES)).encode()


def edited(document: dict[str, object], rewrites: Rewrites) -> dict[str, object]:
    """The reference: the same rewrites on the parsed document."""
    result = dict(document)
    if rewrites.model is not None and "model" in result:
        result["model"] = rewrites.model
    if rewrites.strip_operator_fields:
        for name in OPERATOR_FIELDS:
            result.pop(name, None)
    options = result.get("stream_options") or {}
    assert isinstance(options, dict)
    if rewrites.force_usage and result.get("stream") and not options.get("include_usage"):
        result["stream_options"] = {**options, "include_usage": True}
    limit = rewrites.max_tokens_limit
    present = [name for name in ("max_tokens", "max_completion_tokens") if result.get(name) is not None]
    for name in present:
        value = result[name]
        assert isinstance(value, int)
        result[name] = value if limit is None else min(value, limit)
    default = limit if rewrites.default_max_tokens is None else rewrites.default_max_tokens
    if not present and default is not None:
        result["max_tokens"] = default if limit is None else min(default, limit)
    return result


@given(spelt(), REWRITES)
@settings(deadline=None, max_examples=200)
def test_splicing_is_editing_the_document(case: tuple[dict[str, object], bytes], rewrites: Rewrites) -> None:
    """For random documents in random spellings, parsing the spliced bytes gives the edited document."""
    document, body = case

    assert edited(document, rewrites) == json.loads(rewritten(body, rewrites))


@given(spelt(), REWRITES)
@settings(deadline=None, max_examples=100)
def test_what_no_rewrite_names_keeps_its_bytes(case: tuple[dict[str, object], bytes], rewrites: Rewrites) -> None:
    """Every member whose value did not change is found again with the very bytes it had."""
    document, body = case
    result = rewritten(body, rewrites)
    before, after = decode_members(body), decode_members(result)

    wanted = edited(document, rewrites)
    for key, value in document.items():
        if key in wanted and wanted[key] == value:
            assert bytes(before[key]) == bytes(after[key])
    spans = scan_members(result, after)
    assert [key for key in document if key in wanted] == [span.key for span in spans if span.key in document]


@given(spelt())
@settings(deadline=None, max_examples=100)
def test_the_scan_finds_every_member_where_it_is(case: tuple[dict[str, object], bytes]) -> None:
    """Keys in order, and between the offsets exactly the value."""
    document, body = case

    spans = scan_members(body, decode_members(body))

    assert list(document) == [span.key for span in spans]
    assert list(document.values()) == [json.loads(body[span.value : span.end]) for span in spans]


@given(st.lists(st.tuples(st.sampled_from("abc"), VALUES), min_size=1, max_size=8))
@settings(deadline=None, max_examples=150)
def test_the_scan_is_right_with_repeated_keys(pairs: list[tuple[str, object]]) -> None:
    """Values hidden by later equal keys are stepped over, whatever they look like."""
    body = ("{" + ",".join(f'"{key}": {json.dumps(value)}' for key, value in pairs) + "}").encode()

    spans = scan_members(body, decode_members(body))

    assert pairs == [(span.key, json.loads(body[span.value : span.end])) for span in spans]


def test_a_hidden_member_cannot_pass_as_part_of_another() -> None:
    """Lengths alone would fit here: the nested text is laid out so that a scan that trusted them would miss a key."""
    body = b'{"k":55,"x":1,"model":"b","x":{"a":1,"k":5}}'

    spans = scan_members(body, decode_members(body))

    assert ["k", "x", "model", "x"] == [span.key for span in spans]


def test_a_large_hidden_value_is_refused_rather_than_walked() -> None:
    """Stepping over a value token by token must not be a way to keep the process busy."""
    body = b'{"x":[' + b"[]," * 60_000 + b'1],"x":1}'

    with pytest.raises(RequestError, match="repeats a top-level key"):
        parse(body)


@pytest.mark.parametrize("body", [b"[]", b"{", b'{"a" 1}', b'{"a":1', b'{"a":[1'])
def test_the_scan_of_what_is_no_object_says_so(body: bytes) -> None:
    """Not reachable after a successful decode; still no index error."""
    with pytest.raises(RequestError):
        scan_members(body, {})


def test_c49_without_a_rewrite_the_body_is_the_same_object() -> None:
    """No copy, no change."""
    body = b'{"model":"public","priority":null,"stream":true,"stream_options":{"include_usage":true}}'

    assert body is rewritten(body, Rewrites())
    assert body is rewritten(body, Rewrites(model="public", force_usage=True))


def test_c51_zeros_nulls_and_empties_survive_every_rewrite() -> None:
    """Only the named members differ; explicit nulls stay explicit."""
    rest = b'"temperature":0,"top_p":0.0,"seed":0,"stop":[],"logit_bias":{},"user":"","tools":null'
    body = b'{"model":"m","stream":true,' + rest + b',"max_tokens":0,"priority":0}'

    result = rewritten(body, ALL)

    assert (
        b'{"stream_options":{"include_usage":true},"model":"public","stream":true,' + rest + b',"max_tokens":0}'
        == result
    )


@pytest.mark.parametrize("seed", [b"9007199254740993", b"1e400", b"NaN", b"1" * 5000, b"1E-07"])
def test_c52_numbers_arrive_as_they_were_written(seed: bytes) -> None:
    """Beside rewritten members, too, and where only Python's JSON reads them."""
    body = b'{"model":"m","seed":%s,"priority":1}' % seed

    assert b'{"model":"public","seed":%s}' % seed == rewritten(
        body, Rewrites(model="public", strip_operator_fields=True)
    )


def test_c71_lone_surrogates_arrive_as_they_were_written() -> None:
    """The strict copy that the decoder needs is never sent."""
    body = b'{"messages":[{"content":"\\ud83d"}],"model":"m"}'

    assert b'{"messages":[{"content":"\\ud83d"}],"model":"public"}' == rewritten(body, Rewrites(model="public"))


def test_c58_usage_is_forced_only_where_a_stream_lacks_it() -> None:
    """Chat and completions streams; never twice, never on responses, messages or unstreamed requests."""
    force = Rewrites(force_usage=True)
    plain = b'{"stream":true}'

    assert b'{"stream_options":{"include_usage":true},"stream":true}' == rewritten(plain, force)
    assert rewritten(plain, force) == rewritten(plain, force, Endpoint.COMPLETIONS)
    for endpoint in (Endpoint.RESPONSES, Endpoint.MESSAGES, Endpoint.EMBEDDINGS):
        assert plain == rewritten(plain, force, endpoint)
        assert not forces_usage(parse(plain, endpoint))
    assert b'{"stream":false}' == rewritten(b'{"stream":false}', force)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (b"null", b'{"include_usage":true}'),
        (b"{}", b'{"include_usage":true}'),
        (b'{"include_usage":false}', b'{"include_usage":true}'),
        (b'{ "x" : 1 }', b'{"include_usage":true, "x" : 1 }'),
        (b'{"include_usage":null,"x":1}', b'{"include_usage":true,"x":1}'),
        (b'{"x":1,"continuous_usage_stats":true}', b'{"include_usage":true,"x":1}'),
        (b'{"x":NaN}', b'{"include_usage":true,"x":NaN}'),
        (b'{"x":"\\ud83d"}', b'{"include_usage":true,"x":"\\ud83d"}'),
    ],
)
def test_c58_forcing_usage_keeps_the_other_options(options: bytes, expected: bytes) -> None:
    """But not continuous_usage_stats, which the worker ignored until now and would obey once usage is on."""
    body = b'{"stream":true,"stream_options":%s}' % options

    result = rewritten(body, Rewrites(force_usage=True))

    assert b'{"stream":true,"stream_options":%s}' % expected == result


@pytest.mark.parametrize(
    ("endpoint", "body", "expected"),
    [
        (Endpoint.CHAT_COMPLETIONS, b'{"max_tokens":101}', b'{"max_tokens":100}'),
        (Endpoint.CHAT_COMPLETIONS, b'{"max_tokens":1e9}', b'{"max_tokens":100}'),
        (Endpoint.CHAT_COMPLETIONS, b'{"max_tokens":"4096"}', b'{"max_tokens":100}'),
        (Endpoint.CHAT_COMPLETIONS, b'{"max_tokens":"\\u0034096"}', b'{"max_tokens":100}'),
        (Endpoint.CHAT_COMPLETIONS, b'{"max_tokens":%s}' % (b"9" * 5000), b'{"max_tokens":100}'),
        (Endpoint.CHAT_COMPLETIONS, b'{"max_tokens":"99"}', b'{"max_tokens":"99"}'),
        (Endpoint.CHAT_COMPLETIONS, b'{"max_tokens":"many"}', b'{"max_tokens":"many"}'),
        (Endpoint.CHAT_COMPLETIONS, b'{"max_tokens":[1]}', b'{"max_tokens":[1]}'),
        (
            Endpoint.CHAT_COMPLETIONS,
            b'{"max_tokens":500,"max_completion_tokens":500}',
            b'{"max_tokens":100,"max_completion_tokens":100}',
        ),
        (Endpoint.CHAT_COMPLETIONS, b"{}", b'{"max_tokens":100}'),
        (Endpoint.COMPLETIONS, b"{}", b"{}"),
        (Endpoint.RESPONSES, b"{}", b'{"max_output_tokens":100}'),
        (Endpoint.MESSAGES, b"{}", b"{}"),
        (Endpoint.MESSAGES, b'{"max_tokens":500}', b'{"max_tokens":100}'),
        (Endpoint.EMBEDDINGS, b'{"max_tokens":500}', b'{"max_tokens":500}'),
    ],
)
def test_c53_a_token_limit_lowers_and_never_raises(endpoint: Endpoint, body: bytes, expected: bytes) -> None:
    """Every spelling of a number the worker would take; completions without a limit keep vLLM's 16."""
    assert expected == rewritten(body, Rewrites(max_tokens_limit=100), endpoint)


def test_c53_a_default_is_written_only_where_no_limit_is_set() -> None:
    """Absent or null; and never above the limit."""
    default = Rewrites(default_max_tokens=50)

    assert b'{"max_tokens":50}' == rewritten(b"{}", default, Endpoint.COMPLETIONS)
    assert b'{"max_tokens":50}' == rewritten(b'{"max_tokens":null}', default)
    assert b'{"max_completion_tokens":3}' == rewritten(b'{"max_completion_tokens":3}', default)
    assert b'{"max_tokens":20}' == rewritten(b"{}", Rewrites(default_max_tokens=50, max_tokens_limit=20))


def test_operator_fields_are_stripped_wherever_they_stand() -> None:
    """First, last, all, repeated, with an escaped key; the same names further down stay."""
    strip = Rewrites(strip_operator_fields=True)

    assert b'{"a":1}' == rewritten(b'{"priority":1,"a":1}', strip)
    assert b'{"a":1 }' == rewritten(b'{"a":1 , "request_id":"x" , "cache_salt" : "y" }', strip)
    assert b"{  }" == rewritten(b'{ "priority":1,"kv_transfer_params":{} }', strip)
    assert b'{"a":{"priority":1}}' == rewritten(b'{"priority":1,"a":{"priority":1},"priorit\\u0079":2}', strip)


def test_c63_only_the_model_member_is_renamed() -> None:
    """The name inside texts stays."""
    body = b'{"messages":[{"content":"m \\"model\\":\\"m\\""}],"model":"m"}'

    assert body.replace(b'"model":"m"}', b'"model":"public"}') == rewritten(body, Rewrites(model="public"))
