"""A scenario's options: its dataclass fields after the context, described once and read from KEY=VALUE text."""

from __future__ import annotations

import dataclasses
import difflib
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from loadtest.scenarios.base import Context, Scenario
from loadtest.scenarios.lengths import Length
from loadtest.target import UsageError

# The same words wherever an option means the same.
PROMPT_TOKENS = "tokens of the prompt, template included"
OUTPUT_TOKENS = "tokens of the answer"
OUTPUT = "fixed: exactly output_tokens, where the target can; free: at most, the model ends it"

_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


@dataclass(frozen=True, slots=True)
class Option:
    """One option as it is shown: its key, its default in the notation it is given in, and what it is for."""

    name: str
    default: str
    help: str


def about(help: str, low: float = 0, high: float = float("inf")) -> dict[str, Any]:
    """The metadata that makes a dataclass field an option; the bounds are for numbers."""
    return {"help": help, "low": low, "high": high}


def options_of(scenario: type[Scenario]) -> tuple[Option, ...]:
    """The options a scenario takes, in the order of its fields."""
    return tuple(Option(field.name, shown(field.default), field.metadata["help"]) for field in _option_fields(scenario))


def option_values(scenario: Scenario) -> dict[str, str]:
    """The options a scenario was made with, as `make` would read them: for the stored settings."""
    return {field.name: shown(getattr(scenario, field.name)) for field in _option_fields(type(scenario))}


def make(scenario: type[Scenario], context: Context, given: Mapping[str, str]) -> Scenario:
    """
    A scenario for this target with the given options.

    Raises:
        UsageError: an option it does not take, a value that cannot be read, or lengths that the model has no room for.
    """
    hints = typing.get_type_hints(scenario)
    known = {field.name: field for field in _option_fields(scenario)}
    values: dict[str, Any] = {}
    for key, text in given.items():
        name = key.replace("-", "_")
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            meant = f": did you mean {near[0]}?" if near else ""
            raise UsageError(f"expected an option of {scenario.name} ({', '.join(known)}), found {key!r}{meant}")
        try:
            values[name] = _bounded(_read(hints[name], text), known[name].metadata)
        except ValueError as error:
            raise UsageError(f"option {key} of {scenario.name}: {error}") from error
    maker: Any = scenario
    made: Scenario = maker(context, **values)
    return made


def shown(value: Any) -> str:
    """A value in the notation that it is given in."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _option_fields(scenario: type[Scenario]) -> list[dataclasses.Field[Any]]:
    fields: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(typing.cast(Any, scenario))
    return [field for field in fields if "help" in field.metadata]


def _read(kind: Any, text: str) -> Any:
    choices = typing.get_args(kind)
    if typing.get_origin(kind) is Literal:
        if text not in choices:
            raise ValueError(f"expected {' or '.join(choices)}, found {text!r}")
        return text
    if type(None) in choices:
        return None if text == "" else _read(next(c for c in choices if c is not type(None)), text)
    if kind is bool:
        if text.lower() not in _TRUE + _FALSE:
            raise ValueError(f"expected yes or no, found {text!r}")
        return text.lower() in _TRUE
    if kind is Length:
        return Length.parse(text)
    if kind is int:
        if not text.isdecimal():
            raise ValueError(f"expected a whole number, found {text!r}")
        return int(text)
    if kind is float:
        try:
            return float(text)
        except ValueError:
            raise ValueError(f"expected a number, found {text!r}") from None
    return text


def _bounded(value: Any, bounds: Mapping[str, Any]) -> Any:
    if isinstance(value, int | float) and not bounds["low"] <= value <= min(bounds["high"], sys.float_info.max):
        upper = f" to {bounds['high']:g}" if bounds["high"] < float("inf") else " up"
        raise ValueError(f"expected a number from {bounds['low']:g}{upper}, found {value:g}")
    return value
