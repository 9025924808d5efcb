"""A start's deadline: it moves with progress, and progress is something new."""

from __future__ import annotations

import pytest

from gateway.workers.start_deadline import MOST_TIMES, PATIENCE_S, StartDeadline


def test_a_silent_start_ends_at_its_limit() -> None:
    """Not before, not later."""
    deadline = StartDeadline(600, 1000)
    assert not deadline.passed(1599)
    assert deadline.passed(1600)


def test_a_start_that_gets_on_lives_past_its_limit() -> None:
    """Until it has been still for a while."""
    deadline = StartDeadline(600, 0)
    deadline.saw(590, ["Loading weights took 3 seconds"])
    assert not deadline.passed(600)
    assert not deadline.passed(590 + PATIENCE_S - 1)
    assert deadline.passed(590 + PATIENCE_S)


def test_a_new_phase_is_progress() -> None:
    """Even without a line that looks new."""
    deadline = StartDeadline(600, 0)
    deadline.saw(599, [], new_phase=True)
    assert not deadline.passed(601)


@pytest.mark.parametrize(
    "lines",
    [
        ["INFO 10:00:00 waiting for 4 workers", "INFO 10:01:00 waiting for 3 workers"],
        ["model-1.safetensors:  12%|#2        | 1.20G/9.98G [00:10<01:10]"] * 2,
    ],
)
def test_a_repetition_is_none(lines: list[str]) -> None:
    """Numbers do not make a line new, and a bar has to move."""
    deadline = StartDeadline(600, 0)
    deadline.saw(100, lines[:1])
    deadline.saw(590, lines[1:])
    assert deadline.passed(600)


def test_a_bar_that_moves_is_progress() -> None:
    """In bytes, where a percent takes minutes."""
    deadline = StartDeadline(600, 0)
    deadline.saw(100, ["model-1.safetensors:  12%|#2        | 1.20G/9.98G [00:10<01:10]"])
    deadline.saw(590, ["model-1.safetensors:  12%|#2        | 1.21G/9.98G [00:11<01:10]"])
    assert not deadline.passed(600)


def test_no_progress_lasts_for_ever() -> None:
    """A worker that writes something new every second and never serves is hung as well."""
    deadline = StartDeadline(60, 0)
    for second in range(60 * MOST_TIMES):
        deadline.saw(second, [f"line of {'x' * second}"])
        assert not deadline.passed(second)
    assert deadline.passed(60 * MOST_TIMES)


def test_what_is_remembered_is_limited() -> None:
    """Beyond thousands of different lines nothing counts as new; memory does not grow."""
    deadline = StartDeadline(600, 0)
    deadline.saw(1, ["y" * length for length in range(1, 6000)])
    deadline.saw(590, ["z" * 7000])
    assert deadline.passed(600)
