"""
Nothing in the package is quadratic: twice the bytes cost about twice the CPU time.

The bound is loose (three and a half times, best of three) because the machine is shared; a quadratic path gives four
and more, and at these sizes minutes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import pytest

from gateway.errors import RequestError
from gateway.protocol.observer import StreamObserver
from gateway.protocol.request import parse_request
from gateway.protocol.splice import Rewrites, apply
from gateway.protocol.usage_filter import UsageFilter
from gateway.types import Endpoint, Family

MIB = 1024 * 1024


def cost(work: Callable[[bytes], object], text: bytes) -> float:
    """Least CPU seconds of three runs."""
    costs = []
    for _ in range(3):
        started = time.process_time()
        work(text)
        costs.append(time.process_time() - started)
    return min(costs)


def assert_linear(work: Callable[[bytes], object], text: Callable[[int], bytes], size: int) -> None:
    # A floor keeps the timer's resolution out of the ratio.
    once, twice = cost(work, text(size)), cost(work, text(2 * size))
    assert twice <= 3.5 * max(once, 0.004)


def observe(text: bytes, piece: int = 65_536) -> int:
    observer = StreamObserver(Family.CHAT)
    usage_filter = UsageFilter()
    forwarded = 0
    for at in range(0, len(text), piece):
        observer.feed(text[at : at + piece])
        forwarded += len(usage_filter.feed(text[at : at + piece]))
    assert forwarded + len(usage_filter.flush()) == len(text)
    return observer.events


@pytest.mark.parametrize("unit", [b"x", b"\\n", b'"choices":[]', b"\r", b"\n", b"data: {}\r\n\r\n", b":\n"], ids=repr)
def test_a_16_mib_line_passes_in_linear_time(unit: bytes) -> None:
    """One endless line, and endless line ends."""
    assert_linear(observe, lambda size: b"data: " + unit * (size // len(unit)), 8 * MIB if unit == b"x" else MIB // 4)


def test_small_pieces_of_a_long_event_are_linear() -> None:
    """A 1 MiB event in pieces of 16 bytes: nothing is joined or searched again for every piece."""
    assert_linear(lambda text: observe(text, 16), lambda size: b"data: " + b"x" * size, MIB // 2)


@pytest.mark.parametrize("unit", [b"1234,", b'"text",', b'"\\"[",', b"[],", b'{"a":1},', b'"[",{},'], ids=repr)
def test_large_bodies_are_read_in_linear_time(unit: bytes) -> None:
    """Token ids, strings, escapes, brackets in and out of strings; refused or not."""

    def parse(body: bytes) -> None:
        with contextlib.suppress(RequestError):
            view = parse_request(body, Endpoint.COMPLETIONS, "application/json", max_depth=200)
            apply(view, Rewrites(model="public", strip_operator_fields=True))

    assert_linear(parse, lambda size: b'{"model":"m","prompt":[' + unit * (size // len(unit)) + b"1]}", 2 * MIB)


def test_a_hidden_value_is_walked_in_linear_time() -> None:
    """A repeated key makes the scan step over the first value by tokens."""

    def parse(body: bytes) -> None:
        parse_request(body, Endpoint.COMPLETIONS, "application/json", max_depth=200)

    assert_linear(parse, lambda size: b'{"p":[' + b"12345678," * (size // 9) + b'1],"p":1}', 2 * MIB)


def test_a_large_upload_is_read_in_linear_time() -> None:
    """Full of beginnings of the boundary."""
    head = b'--b\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'

    def parse(body: bytes) -> None:
        parse_request(body, Endpoint.AUDIO, "multipart/form-data; boundary=b", max_depth=200)

    assert_linear(parse, lambda size: head + b"\r\n--bx" * (size // 6) + b"\r\n--b--", MIB)
