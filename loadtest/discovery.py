"""Asking the target what it serves, before any load is sent."""

from __future__ import annotations

import json

from loadtest.http_client import Client, TransportFailure, build_request
from loadtest.target import Target, UsageError


class TargetUnavailableError(Exception):
    """Nothing usable answers at the target; the message says what was tried and what to do."""


def choose_model(target: Target, wanted: str | None, api_key: str | None) -> str:
    """
    The model to ask for: the wanted one if it is served, otherwise the first in the target's list.

    Raises:
        TargetUnavailableError: no answer, not an OpenAI-compatible one, or an empty list.
        UsageError: the wanted model is not served, or the key is refused.
    """
    client = Client(target, connect_timeout_s=5.0, read_timeout_s=10.0)
    where = f"{target.url}/v1/models"
    try:
        answer = client.exchange(build_request("GET", "/v1/models", target, api_key=api_key))
    except TransportFailure as failure:
        raise TargetUnavailableError(
            f"expected an OpenAI-compatible server at {target.url}, found {failure.detail}: "
            "start one with `make serve` (or `make demo`), or name it with --target (make loadtest TARGET=)"
        ) from failure
    finally:
        client.close()
    if answer.status == 401:
        raise UsageError(f"expected {where} to accept the key, found 401: pass --api-key")
    try:
        names = [str(entry["id"]) for entry in json.loads(bytes(answer.body))["data"]]
    except (ValueError, KeyError, TypeError):
        text = bytes(answer.body[:200]).decode(errors="replace")
        raise TargetUnavailableError(
            f"expected a model list from {where}, found HTTP {answer.status}: {text!r}"
        ) from None
    if wanted is not None and wanted not in names:
        raise UsageError(f"expected model {wanted!r} at {target.url}, found {', '.join(names) or 'none'}: set --model")
    if not names:
        raise TargetUnavailableError(
            f"expected at least one model from {where}, found an empty list: is a worker ready?"
        )
    return wanted or names[0]
