"""What a person reads while the fleet starts and runs: lines, decided from the workers' states. Pure."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from urllib.parse import urlsplit

from gateway.control.watcher import Addresses
from gateway.types import WorkerState
from gateway.workers.status import WorkerStatus

REMIND_S = 10.0
QUESTION = "What is the capital of France?"


class ProgressLines:
    """
    Remembers what was said last, so that every change is said once and long phases are said again.

    Times are CLOCK_MONOTONIC seconds.
    """

    def __init__(self) -> None:
        self._said: dict[str, tuple[WorkerState, str, str]] = {}
        self._said_at_s: dict[str, float] = {}

    def lines(self, statuses: Sequence[WorkerStatus], now_s: float) -> list[str]:
        """New lines: a worker's state, phase or failure changed, or it has been starting for ten more seconds."""
        new = []
        for status in statuses:
            saying = (status.state, status.phase if status.state is WorkerState.STARTING else "", status.last_failure)
            due = (
                status.state is WorkerState.STARTING
                and now_s - self._said_at_s.get(status.name, now_s - REMIND_S) >= REMIND_S
            )
            if self._said.get(status.name) == saying and not due:
                continue
            if status.name not in self._said and status.state is WorkerState.STOPPED:
                continue  # nothing has happened to it yet
            self._said[status.name] = saying
            self._said_at_s[status.name] = now_s
            new.append(worker_line(status, now_s))
        return new


def worker_line(status: WorkerStatus, now_s: float) -> str:
    """`llama-0      1:07  loading weights (45%)`."""
    since_s = status.started_at_s if status.started_at_s is not None else status.changed_at_s
    return f"{status.name:<24} {elapsed(now_s - since_s):>6}  {what(status)}"


def what(status: WorkerStatus) -> str:
    """What the worker does now, in words."""
    match status.state:
        case WorkerState.STARTING:
            percent = "" if status.progress is None else f" ({status.progress:.0%})"
            return (status.phase or "starting") + percent
        case WorkerState.READY:
            return "ready"
        case WorkerState.BACKOFF:
            return f"waiting before the next start: {status.last_failure or 'it ended'}"
        case WorkerState.FAILED:
            return f"failed: {status.last_failure or 'no reason known'}"
        case WorkerState.UNHEALTHY:
            return f"unhealthy: {status.last_failure or 'it does not answer'}"
        case _:
            return str(status.state)


def elapsed(seconds: float) -> str:
    """`m:ss`, or `h:mm:ss` from an hour on."""
    whole = max(0, int(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def serving_block(
    addresses: Addresses,
    models: Sequence[str],
    *,
    proxied: bool,
    keys: bool = False,
    command: str = "gateway",
    remote: bool = False,
) -> str:
    """
    What to do with a gateway that serves: addresses, and lines to copy.

    Args:
        models: Public names, the first is used in the examples.
        proxied: A proxy variable is set, so clients would ask the proxy for our loopback address.
        keys: An API key is required; the lines take it from a variable.
        command: How the `gateway` command is called here.
        remote: The person sits at another machine and reached this one by ssh.
    """
    key_header = ' -H "Authorization: Bearer $KEY"' if keys else ""
    python_key = 'os.environ["KEY"]' if keys else '"unused"'
    body = json.dumps({"model": models[0], "messages": [{"role": "user", "content": QUESTION}]}, ensure_ascii=False)
    lines = [
        "",
        f"Serving {', '.join(models)}",
        "",
        f"  URL      {addresses.public}/v1",
        f"  console  {addresses.admin}/console",
        *([f"           from your own machine: {_tunnel(addresses.admin)}, then the same address"] if remote else []),
        f"  metrics  {addresses.admin}/metrics",
        f"  status   {command} status",
        "  stop     Ctrl-C",
        "",
    ]
    if proxied:
        lines += ["A proxy is set in your environment. For the shell that calls the gateway:", ""]
        lines += ["  export NO_PROXY=127.0.0.1,localhost no_proxy=127.0.0.1,localhost", ""]
    if keys:
        lines += ["Requests need an API key. Make one for the shell that calls the gateway:", ""]
        lines += [f"  export KEY=$({command} keys create NAME)", ""]
    lines += [
        f"  curl {addresses.public}/v1/chat/completions{key_header} -H 'Content-Type: application/json'"
        f" -d {shlex.quote(body)}",
        "",
        *(["  import os"] if keys else []),
        "  from openai import OpenAI",
        f'  client = OpenAI(base_url="{addresses.public}/v1", api_key={python_key})',
        f'  messages = [{{"role": "user", "content": "{QUESTION}"}}]',
        f"  answer = client.chat.completions.create(model={json.dumps(models[0])}, messages=messages)",
        "  print(answer.choices[0].message.content)",
        "",
    ]
    return "\n".join(lines)


def _tunnel(admin_url: str) -> str:
    """The command that brings the admin port to the machine one sits at."""
    port = urlsplit(admin_url).port
    return f"ssh -L {port}:127.0.0.1:{port} USER@HOST"
