"""The complexity check against a parser, on documents that try to mislead it."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.errors import RequestError
from gateway.protocol.structure import MAX_CONTAINERS, MAX_MEMBERS, check_structure

TEXT = st.text(st.sampled_from('"\\[]{}:,aé\n'), max_size=8)
VALUES = st.recursive(
    TEXT | st.integers(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=30,
)


def depth_of(value: object) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(depth_of, value), default=0)
    return 0


def too_complex(body: bytes, max_depth: int) -> bool:
    try:
        check_structure(body, max_depth)
    except RequestError as error:
        return error.code == "json_too_complex"
    return False


@given(VALUES, st.integers(0, 12), st.booleans())
@settings(deadline=None, max_examples=150)
def test_the_depth_is_what_a_parser_sees(value: object, max_depth: int, ascii_only: bool) -> None:
    """Brackets, quotes and backslashes inside strings mislead nobody."""
    body = json.dumps(value, ensure_ascii=ascii_only).encode()

    assert (depth_of(value) > max_depth) == too_complex(body, max_depth)


@given(VALUES, st.integers(0, 12), st.integers(1, 7))
@settings(deadline=None, max_examples=100)
def test_the_depth_is_the_same_in_slices(value: object, max_depth: int, slice_: int) -> None:
    """The path for bodies with very many strings, made reachable by small limits."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gateway.protocol.structure._SLICE", slice_)
        patch.setattr("gateway.protocol.structure.MAX_MEMBERS", 1000)
        body = json.dumps(value).encode() + b" " + b'"" ' * 1001

        assert (depth_of(value) > max_depth) == too_complex(body, max_depth)


@pytest.mark.parametrize(
    "body",
    [
        b"[" + b"[]," * MAX_CONTAINERS + b"1]",
        b"{" + b'"a":1,' * (MAX_MEMBERS + 1) + b'"b":1}',
        b"[" + b'["["],' * (4 * MAX_CONTAINERS) + b"1]",
        b"[" + b'["x"],' * (2 * MAX_CONTAINERS) + b"1]",
    ],
    ids=["containers", "members", "containers-with-brackets", "containers-with-strings"],
)
def test_c70_a_body_of_very_many_parts_is_refused_quickly(body: bytes) -> None:
    """Breadth costs as depth does; a deadline far above the cost guards against a quadratic path."""
    started = time.process_time()

    assert too_complex(body, 200)
    assert time.process_time() - started < 2


def test_text_full_of_structure_is_no_structure() -> None:
    """A megabyte of source code in one string is one string."""
    assert not too_complex(json.dumps({"x": '{"a":[' * 300_000}).encode(), 2)


def test_many_shallow_arrays_are_allowed() -> None:
    """A batch of token lists, and alternating depths that no quick pass resolves."""
    assert not too_complex(b'{"input":[' + b"[1,2]," * 10_000 + b"[1]]}", 200)
    saw = b"[" * 150 + b"]" * 150
    assert not too_complex(b"[" + saw + b"," + saw + b"]", 151)
    assert too_complex(b"[" + saw + b"," + saw + b"]", 150)


def test_the_first_of_two_equal_keys_counts_too() -> None:
    """A parser forgets its value; the nesting is there all the same."""
    assert too_complex(b'{"x":' + b"[" * 300 + b"]" * 300 + b',"x":1}', 200)
