"""Form uploads: two fields are found wherever they stand, and the file is not looked into."""

from __future__ import annotations

import pytest

from gateway.errors import RequestError
from gateway.protocol.multipart import read_fields
from gateway.protocol.request import RequestView, parse_request
from gateway.protocol.splice import Rewrites, apply
from gateway.types import Endpoint

BOUNDARY = "----b0und'ary"
FILE = b'\x00\xff\r\n------b0und\'aryX\r\n--\r\n\r\nname="model"' * 3


def part(head: str, value: bytes, name: str = "Content-Disposition") -> bytes:
    return f"--{BOUNDARY}\r\n{name}: form-data; {head}\r\n\r\n".encode() + value + b"\r\n"


def form(*parts: bytes) -> bytes:
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


UPLOAD = part('name="file"; filename="naïve.wav"\r\nContent-Type: audio/wav', FILE)
MODEL = part('name="model"', b"org/whisper")
STREAM = part("name=stream", b"true", "content-disposition")
TYPE = f'multipart/form-data; boundary="{BOUNDARY}"'


def parse(body: bytes, content_type: str = TYPE) -> RequestView:
    return parse_request(body, Endpoint.AUDIO, content_type, max_depth=200)


@pytest.mark.parametrize("content_type", [TYPE, TYPE.replace('"', ""), f"{TYPE}; charset=utf-8"])
@pytest.mark.parametrize("parts", [(MODEL, UPLOAD, STREAM), (UPLOAD, STREAM, MODEL), (STREAM, MODEL, UPLOAD)])
def test_c84_model_and_stream_are_found_wherever_they_stand(parts: tuple[bytes, ...], content_type: str) -> None:
    """Before and after a file with boundary-like bytes, NULs and 0xff; quoted and bare boundaries."""
    body = form(*parts)

    view = parse(body, content_type)

    assert body is view.body
    assert ("org/whisper", True, 1, None) == (view.model, view.stream, view.n, view.max_tokens)


def test_c84_a_file_is_never_a_field() -> None:
    """A file part named model is a file; and its content is not form data."""
    upload = part('name="model"; filename="x"', b"evil")

    assert parse(form(upload)).model is None
    assert (None, False) == (parse(form(UPLOAD)).model, parse(form(UPLOAD)).stream)


@pytest.mark.parametrize(
    ("text", "expected"), [(b"1", True), (b"True", True), (b"false", False), (b"0", False), (b"", False)]
)
def test_c84_the_stream_field_is_read_as_fastapi_reads_it(text: bytes, expected: bool) -> None:
    """Form values are text."""
    assert expected == parse(form(part('name="stream"', text))).stream


def test_c84_renaming_the_model_leaves_every_other_byte() -> None:
    """The file is carried over as it is; without a rename the body is the same object."""
    body = form(UPLOAD, MODEL, STREAM)
    view = parse(body)

    assert body.replace(b"org/whisper", b"public") == apply(view, Rewrites(model="public"))
    assert body is apply(view, Rewrites(model="org/whisper", strip_operator_fields=True, default_max_tokens=3))


def test_a_field_whose_blank_line_is_the_delimiters_own_has_no_value() -> None:
    """It is refused as an empty model is, and nothing of it counts twice."""
    body = b'--b\r\nContent-Disposition: form-data; name="model"\r\n\r\n--b--\r\n'
    field = read_fields(body, "multipart/form-data; boundary=b", frozenset({"model"}))["model"]

    assert (b"", field.end) == (field.value, field.start)
    with pytest.raises(RequestError, match="model"):
        parse_request(body, Endpoint.AUDIO, "multipart/form-data; boundary=b", max_depth=64)


def test_a_preamble_and_a_part_without_headers_are_passed_over() -> None:
    """Both are legal, neither is common."""
    body = b"preamble\r\n" + f"--{BOUNDARY} \r\n\r\nheadless\r\n".encode() + form(MODEL)

    assert "org/whisper" == parse(body).model


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (form(MODEL), "multipart/form-data"),
        (form(MODEL), "multipart/form-data; boundary="),
        (form(MODEL), "multipart/form-data; boundary=" + "x" * 71),
        (b"", TYPE),
        (MODEL, TYPE),
        (MODEL + b"--" + BOUNDARY.encode() + b"junk", TYPE),
        (b"--" + BOUNDARY.encode() + b"junk", TYPE),
        (b"--" + BOUNDARY.encode() + b"\r\n" + b"x" * 9000, TYPE),
        (form(*[part('name="x"', b"")] * 1001), TYPE),
    ],
)
def test_a_malformed_form_is_refused(body: bytes, content_type: str) -> None:
    """With a code and a message of its own."""
    with pytest.raises(RequestError, match="multipart") as caught:
        parse(body, content_type)

    assert (400, "invalid_multipart") == (caught.value.status, caught.value.code)


@pytest.mark.parametrize("parts", [(MODEL, MODEL), (part('name="model"', b"x" * 2000),), (part('name="model"', b""),)])
def test_an_ambiguous_or_absurd_field_is_refused(parts: tuple[bytes, ...]) -> None:
    """The field is named, its value is not repeated."""
    with pytest.raises(RequestError) as caught:
        parse(form(*parts))

    assert (400, "model") == (caught.value.status, caught.value.param)
