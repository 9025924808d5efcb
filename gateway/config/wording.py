"""From the schema's complaints to sentences: what was expected, what was found, which key was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from gateway.config.document import Document, Finding, Path, dotted
from gateway.config.settings import Settings

MAX_SHOWN = 60
_SECRET_WORDS = ("api_key", "token", "secret", "password")


def findings(errors: Sequence[ErrorDetails], document: Document) -> list[Finding]:
    """
    One finding for each place, in the order of the errors.

    A key that may hold one of several types has one complaint for each of them; they are joined.
    """
    unknown: list[Finding] = []
    expected: dict[Path, list[str]] = {}
    plain: list[Finding] = []
    for error in errors:
        path = _in_document(error["loc"], document.data)
        kind = error["type"]
        if kind == "extra_forbidden":
            unknown.append(Finding(path, _unknown(path), unknown_key=True))
        elif kind == "missing":
            missing = (*path, str(error["loc"][-1]))
            plain.append(Finding(missing, f"required, found nothing: {_purpose(missing)}"))
        elif kind == "value_error":
            plain.append(Finding(path, str(error["ctx"]["error"]), rule=True))
        else:
            expected.setdefault(path, []).append(_expected(error))
    wrong = [
        Finding(path, f"expected {' or '.join(dict.fromkeys(kinds))}, found {shown(_at(path, document.data), path)}")
        for path, kinds in expected.items()
    ]
    return unknown + wrong + plain


def shown(value: object, path: Path = ()) -> str:
    """A value as the operator wrote it, shortened; never a secret."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return f"{str(value).lower()} (quote it if text is meant)"
    if isinstance(value, Mapping):
        return "a mapping"
    if isinstance(value, list):
        return "an empty list" if not value else "a list"
    if any(word in str(part).lower() for part in path for word in _SECRET_WORDS):
        return "a value that is not shown"
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[: MAX_SHOWN - 1] + "…"


def known_keys(path: Path) -> tuple[str, ...]:
    """Keys of the section at a path; empty where the operator chooses the names."""
    section = _section(path)
    return tuple(section.model_fields) if section is not None else ()


def sections() -> Iterator[tuple[str, type[BaseModel]]]:
    """Every section with its dotted place, depth first; `NAME` stands for names that the operator chooses."""
    yield from _walk("", Settings)


def _walk(place: str, section: type[BaseModel]) -> Iterator[tuple[str, type[BaseModel]]]:
    yield place, section
    for name, info in section.model_fields.items():
        inner, shape = inner_section(info.annotation)
        if inner is not None:
            yield from _walk(f"{place}.{name}{shape}".removeprefix("."), inner)


def inner_section(annotation: object) -> tuple[type[BaseModel] | None, str]:
    """The section a field holds, and how it is reached from the field's key: ``, `.NAME` or `[]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation, ""
    for argument in get_args(annotation):
        if isinstance(argument, type) and issubclass(argument, BaseModel):
            origin = getattr(annotation, "__origin__", None)
            return argument, {dict: ".NAME", list: "[]"}.get(origin, "") if origin is not None else ""
    return None, ""


def _section(path: Path) -> type[BaseModel] | None:
    section: type[BaseModel] | None = Settings
    free = False
    for part in path:
        if free:
            free = False
            continue
        if section is None or part not in section.model_fields:
            return None
        section, shape = inner_section(section.model_fields[str(part)].annotation)
        free = shape != ""
    return None if free else section


def _unknown(path: Path) -> str:
    key = str(path[-1])
    known = known_keys(path[:-1])
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if close:
        return f"unknown key; did you mean {dotted((*path[:-1], close[0]))}?"
    everywhere: dict[str, str] = {}
    for place, section in sections():
        for name in section.model_fields:
            everywhere.setdefault(name, f"{place}.{name}".removeprefix("."))
    close = difflib.get_close_matches(key, everywhere, n=1, cutoff=0.75)
    if close:
        place = everywhere[close[0]]
        if path[0] == place.partition(".")[0] and len(path) > 2:
            place = place.replace("NAME", dotted((path[1],)), 1)
        return f"unknown key here; did you mean {place}?"
    return f"unknown key; this section knows {', '.join(known)}"


def _purpose(path: Path) -> str:
    """The first sentence of a key's description."""
    section = _section(path[:-1])
    description = section.model_fields[str(path[-1])].description if section is not None else None
    return " ".join((description or "a value").split()).split(". ")[0].rstrip(".")


def _expected(error: ErrorDetails) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "int_type" | "int_parsing" | "int_from_float":
            return "a whole number"
        case "float_type" | "float_parsing":
            return "a number"
        case "string_type" | "path_type":
            return "text"
        case "bool_type" | "bool_parsing":
            return "true or false"
        case "dict_type" | "model_type" | "model_attributes_type":
            return "a mapping (keys with values below it)"
        case "list_type":
            return "a list"
        case "literal_error" | "enum":
            return str(context["expected"]).replace("'", "")
        case "greater_than_equal":
            return f"at least {context['ge']:g}"
        case "greater_than":
            return f"more than {context['gt']:g}"
        case "less_than_equal":
            return f"at most {context['le']:g}"
        case "less_than":
            return f"less than {context['lt']:g}"
        case "too_short":
            return f"at least {context['min_length']} {'entry' if context['min_length'] == 1 else 'entries'}"
        case _:
            return error["msg"]


def _in_document(loc: tuple[int | str, ...], data: object) -> Path:
    """The schema's place without what it adds for union members and validators."""
    path: Path = ()
    for part in loc:
        inside, data = _step(data, part)
        if not inside:
            break
        path = (*path, part)
    return path


def _at(path: Path, data: object) -> object:
    for part in path:
        _, data = _step(data, part)
    return data


def _step(data: object, part: int | str) -> tuple[bool, object]:
    """Whether `data` has `part`, and what is there."""
    if isinstance(data, Mapping) and part in data:
        return True, data[part]
    if isinstance(data, list) and isinstance(part, int) and part < len(data):
        return True, data[part]
    return False, None
