"""Names, requests and answers that several corpus tests need: of the kinds that relays have damaged."""

from __future__ import annotations

import base64
import itertools
import json
import random
import struct

from loadtest.servers import frames
from loadtest.servers.frames import compact, data_event

STREAM = frames.ChatStream()
NAMES = (
    "org/name-7b",
    "org/team/name",
    "a:b@c",
    "plus+plus",
    "with space",
    "안녕-😀",
    "100%",
    "q?x=1",
    "hash#1",
    "models/x",
    "v1/models/y",
    "semi;colon,comma",
    "a..b",
    "%2F",
)
"""Names of models that are hard to put into a path."""


def tool_stream() -> list[bytes]:
    """Two parallel calls, interleaved, their arguments in many pieces; one event holds a piece of both."""
    texts = ['{"city": "안녕 😀", "days": [1, 2, 3]}', '{"q": "a\\"b", "limit": 10}']
    opening = [STREAM.tool_call("", call, name) for call, name in enumerate(("forecast", "search"))]
    size = 3
    pieces = [[text[at : at + size] for at in range(0, len(text), size)] for text in texts]
    events = []
    for first, second in itertools.zip_longest(*pieces):
        if first is not None:
            events.append(STREAM.tool_call(first, 0))
        if second is not None:
            events.append(STREAM.tool_call(second, 1))
    both = json.loads(STREAM.tool_call("", 0).removeprefix(b"data: "))
    entry = both["choices"][0]["delta"]["tool_calls"]
    entry.append({"index": 1, "function": {"arguments": " "}})
    return [STREAM.role(), *opening, *events, data_event(compact(both)), STREAM.finish("tool_calls"), frames.DONE]


def three_choices(seed: int) -> tuple[list[bytes], list[str]]:
    """Three answers interleaved at random, each with logprobs, and their texts."""
    random_ = random.Random(seed)
    texts = ["alpha beta gamma", "안녕 😀 hello", "x"]
    queues = []
    for index, text in enumerate(texts):
        words = [text[at : at + 3] for at in range(0, len(text), 3)]
        contents = [
            STREAM.content(word, index).replace(
                b'"logprobs":null', b'"logprobs":{"content":[{"token":"x","logprob":-0.0}]}'
            )
            for word in words
        ]
        queues.append([STREAM.role(index), *contents, STREAM.finish(index=index)])
    events = []
    while any(queues):
        events.append(random_.choice([queue for queue in queues if queue]).pop(0))
    return events, texts


def base64_vector(values: list[float]) -> str:
    """Little-endian float32, as embedding servers encode it."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def json_text(random_: random.Random, depth: int = 0) -> str:
    """Any JSON value as text, in unusual but valid spelling; none of its keys is one that a rewrite looks for."""
    space = random_.choice(["", "", " ", "\n", "\t", "\r\n  "])
    kind = random_.randrange(7 if depth < 4 else 5)
    if kind == 0:
        return random_.choice(["null", "true", "false"])
    if kind == 1:
        return random_.choice(["0", "-0", "1.0", "1e400", "-1E-7", "9007199254740993", "0.10", "18446744073709551616"])
    if kind <= 4:
        return json_string(random_)
    inner = [json_text(random_, depth + 1) for _ in range(random_.randrange(4))]
    if kind == 5:
        return f"[{space}" + f"{space},".join(inner) + f"{space}]"
    members = [f'"x{random_.randrange(9)}"{space}:{space}{value}' for value in inner]
    return f"{{{space}" + f",{space}".join(members) + f"{space}}}"


def json_string(random_: random.Random) -> str:
    """A string with escapes, brackets, quotes, and characters of every length."""
    pieces = [
        "a",
        "é",
        "안",
        "😀",
        '\\"',
        "\\\\",
        "\\u00e9",
        "\\ud83d\\ude00",
        "\\/",
        "[",
        "{",
        "}",
        "]",
        ":",
        ",",
        "\u2028",
    ]
    return '"' + "".join(random_.choices(pieces, k=random_.randrange(8))) + '"'
