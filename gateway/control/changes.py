"""What differs between two configurations, key by key, and what applying each difference costs. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any

import msgspec

from gateway.config.settings import Settings

_ABSENT = object()
_LONGEST_VALUE = 60
HIDDEN = "(hidden)"
"""Shown instead of values that may be secrets: keys, and the environment of workers."""


class Effect(StrEnum):
    """What applying a change does."""

    REFUSED = "needs a restart of the gateway"
    GATEWAY = "gateway processes are replaced, streams finish"
    ADDED = "workers start"
    REMOVED = "workers finish their requests and stop"
    COUNT = "workers start or stop"
    ROLLED = "workers are replaced one by one"
    NEXT_START = "with each worker's next restart"


class Change(msgspec.Struct, frozen=True):
    """One key: its value before and after (as text, "" where there is none), and what follows."""

    key: str
    before: str
    after: str
    effect: Effect


def changes(before: Settings, after: Settings) -> tuple[Change, ...]:
    """All differences in the order of the file's schema. Equal meaning is no difference: defaults are filled in."""
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return tuple(
        Change(".".join(path), _shown(path, a), _shown(path, b), _effect(path, a, b))
        for path, a, b in _differences((), old, new)
    ) + tuple(_secrets(before, after))


def refusal(found: tuple[Change, ...]) -> str:
    """The sentence that says why the changes cannot be applied to a running gateway; "" when they can."""
    keys = [change.key for change in found if change.effect is Effect.REFUSED]
    if not keys:
        return ""
    return (
        f"{', '.join(keys)} cannot change while the gateway runs: its sockets are opened once. Nothing was applied; "
        "put the old value back, or stop the gateway and start it again"
    )


def for_gateway_processes(found: tuple[Change, ...]) -> bool:
    """Whether gateway processes need the new settings: everything but how workers are launched and watched."""
    return any(change.effect not in (Effect.ROLLED, Effect.NEXT_START) for change in found)


def _differences(path: tuple[str, ...], a: Any, b: Any) -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    whole = path[:1] == ("models",) and len(path) == 2 and (a is _ABSENT or b is _ABSENT)
    if isinstance(a, Mapping) and isinstance(b, Mapping) and not whole:
        for key in dict.fromkeys((*a, *b)):
            yield from _differences((*path, str(key)), a.get(key, _ABSENT), b.get(key, _ABSENT))
    elif a is _ABSENT or b is _ABSENT or a != b:
        yield path, a, b


def _effect(path: tuple[str, ...], a: object, b: object) -> Effect:
    match path:
        case ("listen" | "admin", *_):
            return Effect.REFUSED
        case ("models", _):
            return Effect.ADDED if a is _ABSENT else Effect.REMOVED
        case ("models", _, "replicas" | "workers", *_):
            return Effect.COUNT
        case ("models", _, "launch", "start_timeout_s"):
            return Effect.NEXT_START
        case ("models", _, "model" | "engine" | "launch", *_) | ("engines", *_):
            return Effect.ROLLED
        case ("watch", *_):
            return Effect.NEXT_START
        case _:
            return Effect.GATEWAY


def _shown(path: tuple[str, ...], value: object) -> str:
    if value is _ABSENT:
        return ""
    if "env" in path[:-1] or path[-1:] == ("env",) or "api_key" in path:
        return HIDDEN
    if path[:1] == ("models",) and len(path) == 2 and isinstance(value, Mapping):
        return f"{value.get('model') or 'static workers'} x {value.get('replicas')}"
    if path[-1:] == ("workers",) and isinstance(value, list):
        return ", ".join(str(worker.get("url")) for worker in value) or "none"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST_VALUE else text[: _LONGEST_VALUE - 1] + "…"


def _secrets(before: Settings, after: Settings) -> Iterator[Change]:
    """Keys of static workers, which look alike when dumped."""
    for name in before.models.keys() & after.models.keys():
        pairs = zip(before.models[name].workers, after.models[name].workers, strict=False)
        for index, (a, b) in enumerate(pairs):
            if a.api_key != b.api_key and a.url == b.url and (a.api_key is None) == (b.api_key is None):
                yield Change(f"models.{name}.workers.{index}.api_key", HIDDEN, HIDDEN, Effect.COUNT)
