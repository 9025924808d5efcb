"""
The SDK matrix: a program cannot tell the gateway from a worker, except where the gateway is better on purpose.

Every client runs once, as a process with its real SDK, against a scripted worker and against the gateway in front of
such workers over both relay paths; each test judges one operation of one client.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.sdk.expectations import FAILS, FRAGMENTS, INTENDED, OPERATIONS, PAUSES_S
from tests.sdk.matrix import TARGETS, Results, command_of, run_client

pytestmark = [pytest.mark.integration, pytest.mark.timeout(150)]

CASES = [(client, operation) for client, operations in OPERATIONS.items() for operation in operations]
THROUGH = range(1, len(TARGETS))


@pytest.fixture(scope="module")
def runs() -> dict[str, Results | AssertionError]:
    """Clients that have run already, or failed to: each runs once, for all of its tests."""
    return {}


@pytest.fixture
def results(client: str, runs: dict[str, Results | AssertionError], tmp_path: Path) -> Results:
    """What the client printed, all operations and targets."""
    if client not in runs:
        command = command_of(client)
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            try:
                runs[client] = runner.run(run_client(client, command, tmp_path))
            except AssertionError as failure:
                runs[client] = failure
    found = runs[client]
    if isinstance(found, AssertionError):
        raise found
    return found


each_operation = pytest.mark.parametrize(("client", "operation"), CASES)
each_client = pytest.mark.parametrize("client", OPERATIONS)


@each_operation
def test_the_result_is_that_of_a_bare_worker(client: str, operation: str, results: Results) -> None:
    """Identical but for the differences on purpose, over both relay paths."""
    direct, *through = results.by_operation[operation]
    intended = INTENDED[client].get(operation)
    expected = direct if intended is None else intended.expected(direct)

    assert [expected, expected] == through
    if intended is not None:
        assert expected != direct, f"no difference any more: {intended.reason}"


@each_operation
def test_the_result_is_right(client: str, operation: str, results: Results) -> None:
    """Not only the same: the text, the calls, the numbers are there, and errors only where there must be one."""
    for target in range(len(TARGETS)):
        result = results.by_operation[operation][target]
        text = json.dumps(result, ensure_ascii=False)
        assert not _contains(text, ('"defect"',)), f"{TARGETS[target]}: {text}"
        fragments = tuple(json.dumps(part, ensure_ascii=False)[1:-1] for part in FRAGMENTS.get(operation, ()))
        assert _contains(text, fragments), f"{TARGETS[target]}: expected {fragments} in {text}"
        assert results.seconds[operation][target] >= PAUSES_S.get(operation, 0.0)
        if target in THROUGH:
            assert (operation in FAILS) == _failed(result), f"{TARGETS[target]}: {text}"


@each_client
def test_the_program_ran_all_that_is_listed(client: str, results: Results) -> None:
    """No operation is left out of the tables, none of the tables out of the program."""
    assert set(OPERATIONS[client]) == set(results.by_operation)
    assert set(INTENDED[client]) - {"request_id"} <= set(OPERATIONS[client])
    for operation, found in results.by_operation.items():
        assert len(TARGETS) == len(found), operation
    assert [1] * len(TARGETS) == results.abandoned


@each_client
def test_the_worker_is_sent_what_the_client_sent(client: str, results: Results) -> None:
    """
    Bodies reach the workers as written, as often as written: beside forced usage nothing is changed, and no retry of
    the gateway comes on top of the SDK's.
    """
    direct, *through = (Counter(_requests(sent)) for sent in results.sent)

    assert direct.total() > 0
    assert [direct, direct] == through


def _requests(sent: list[tuple[str, bytes]]) -> Iterator[tuple[str, str]]:
    """Posted bodies without stream options; those for unknown models, which stay in the gateway, left out."""
    for path, raw in sent:
        if not raw:
            continue
        body: dict[str, Any] = json.loads(raw)
        if body["model"] != "nope":
            body.pop("stream_options", None)
            yield path, json.dumps(body, ensure_ascii=False)


def _contains(text: str, fragments: tuple[str, ...]) -> bool:
    """Whether `text` has all of `fragments`, one after the other."""
    position = 0
    for fragment in fragments:
        position = text.find(fragment, position)
        if position < 0:
            return False
        position += len(fragment)
    return True


def _failed(result: Any) -> bool:
    """Whether an operation ended with an exception of its SDK."""
    return isinstance(result, dict) and isinstance(result.get("error"), str)
