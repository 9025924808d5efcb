"""Typed decoders of the few members of a request that the gateway reads."""

from __future__ import annotations

import msgspec


class StreamOptions(msgspec.Struct):
    """`stream_options`, as far as it matters here."""

    include_usage: bool | None = None


TEXT: msgspec.json.Decoder[str | None] = msgspec.json.Decoder(str | None)
BOOLEAN: msgspec.json.Decoder[bool | None] = msgspec.json.Decoder(bool | None)
INTEGER: msgspec.json.Decoder[int | None] = msgspec.json.Decoder(int | None)
STREAM_OPTIONS: msgspec.json.Decoder[StreamOptions | None] = msgspec.json.Decoder(StreamOptions | None)
