"""
From a configuration file, or from plain arguments, to settings.

All problems are reported at once, each with file, line, key, what was expected and what was found.
"""

from __future__ import annotations

import copy
import json
import os
import ssl
from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from gateway.config.checks import check
from gateway.config.document import Document, Finding, dotted, read
from gateway.config.settings import Settings
from gateway.config.wording import findings
from gateway.errors import ConfigurationError, ConfigurationProblems, UnknownKeyError

MAX_FILE_BYTES = 1024 * 1024
"""The parser takes seconds for a megabyte; whoever gives us more has named the wrong file."""


def load_settings(path: Path) -> Settings:
    """
    Read and check a configuration file. Relative paths in it are taken from its folder.

    Raises:
        ConfigurationProblems: With everything that is wrong, in the order of the lines.
    """
    document, problems, settings = _examine(path)
    if problems or settings is None:
        raise ConfigurationProblems([_error(problem, document, str(path)) for problem in problems])
    return settings


def explain(path: Path) -> list[ConfigurationError]:
    """Everything that is wrong with a configuration file, in the order of the lines; empty when nothing is."""
    document, problems, _ = _examine(path)
    return [_error(problem, document, str(path)) for problem in problems]


def settings_from_mapping(data: Mapping[str, object], folder: Path) -> Settings:
    """
    Settings from data of the same shape as the file, with the same checks; for `gateway up MODEL` and tests.

    Raises:
        ConfigurationProblems: Without file and lines.
    """
    document = Document(data=copy.deepcopy(dict(data)))
    problems, settings = _validate(document, folder)
    if problems or settings is None:
        raise ConfigurationProblems([_error(problem, document, None) for problem in problems])
    return settings


class DiskFiles:
    """The disk, as the checks ask about it."""

    def unreadable(self, path: str) -> str | None:
        """Why a file cannot be read (or is empty), None when it can."""
        try:
            with open(path, "rb") as file:
                return None if file.read(1) else "is empty"
        except OSError as exc:
            return f"cannot be read ({exc.strerror})"
        except ValueError:  # a NUL in the path
            return "is no file name"

    def not_certificates(self, path: str) -> str | None:
        """Why a readable file cannot serve as a certificate authority, None when it can."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
        except ssl.SSLError as exc:
            return f"holds none ({exc.reason or exc})"
        return None

    def not_executable(self, path: str) -> str | None:
        """Why a program cannot be run, None when it can."""
        if not os.path.isfile(path):
            return "does not exist" if not os.path.exists(path) else "is not a file"
        return None if os.access(path, os.X_OK) else "may not be executed"

    def is_folder(self, path: str) -> bool:
        """Whether there is a folder."""
        return os.path.isdir(path)


def _examine(path: Path) -> tuple[Document, list[Finding], Settings | None]:
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            message = f"expected a configuration of at most {MAX_FILE_BYTES} bytes, found more"
            return Document(), [Finding((), message)], None
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as exc:
        return Document(), [Finding((), f"expected UTF-8 text, found byte {exc.object[exc.start]:#04x}")], None
    except OSError as exc:
        return Document(), [Finding((), f"the file cannot be read ({exc.strerror})")], None
    document = read(text)
    if not document.readable:
        return document, document.findings, None
    problems, settings = _validate(document, path.parent)
    return document, problems, settings


def _validate(document: Document, folder: Path) -> tuple[list[Finding], Settings | None]:
    data = document.data
    _anchor_paths(data, folder)
    problems = document.findings + check(data, DiskFiles())
    settings: Settings | None = None
    try:
        # As JSON and strict: YAML has types, so `replicas: "2"` and `replicas: true` are mistakes worth telling.
        settings = Settings.model_validate_json(json.dumps(data), strict=True)
    except ValidationError as exc:
        schema = findings(exc.errors(include_url=False), document)
        # The schema's own rules guard settings made elsewhere; the checks have said the same with a better place.
        said = [problem.path for problem in problems]
        problems += [
            one for one in schema if not (one.rule and any(path[: len(one.path)] == one.path for path in said))
        ]
    problems.sort(key=lambda problem: problem.line or document.line(problem.path) or 0)
    return problems, settings


def _anchor_paths(data: Mapping[str, object], folder: Path) -> None:
    """Make relative paths absolute, so that they mean the same in every process that gets the settings."""
    engines, models, traces = data.get("engines"), data.get("models"), data.get("traces")
    if isinstance(traces, dict):
        _anchor(traces, "headers_file", folder)
    for engine in engines.values() if isinstance(engines, dict) else ():
        if isinstance(engine, dict):
            _anchor(engine, "python", folder)
    for model in models.values() if isinstance(models, dict) else ():
        if not isinstance(model, dict):
            continue
        if isinstance(model.get("model"), str) and model["model"].startswith(("./", "../")):
            _anchor(model, "model", folder)
        workers = model.get("workers")
        for worker in workers if isinstance(workers, list) else ():
            if isinstance(worker, dict):
                _anchor(worker, "api_key_file", folder)
                _anchor(worker, "tls_ca_file", folder)


def _anchor(section: dict[str, object], key: str, folder: Path) -> None:
    value = section.get(key)
    if isinstance(value, str) and value:
        # Not resolve(): a virtual environment's interpreter is a symbolic link that must stay one.
        section[key] = os.path.normpath(os.path.join(os.path.abspath(folder), value))


def _error(finding: Finding, document: Document, file: str | None) -> ConfigurationError:
    kind = UnknownKeyError if finding.unknown_key else ConfigurationError
    line = finding.line if finding.line is not None else document.line(finding.path)
    return kind(finding.message, key=dotted(finding.path), line=line if file is not None else None, file=file)
