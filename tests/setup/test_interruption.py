"""
An installation or conversion killed at any step leaves nothing that looks finished, and the next run succeeds.

The fakes announce each step on a FIFO before they take it, so the kill comes at a known step and not after a time. A
kill hits either the builder alone, whose running fake then goes on as an orphan, or the whole process group.
"""

from __future__ import annotations

import fcntl
import os
import signal

import pytest

from tests.setup.conftest import FakeMachine

pytestmark = pytest.mark.integration

STEPS = {
    "light": ("venv-folder", "venv-python", "venv-end", "pip-first", "pip-second", "pip-end", "verify", "verify-end"),
    "engine": ("venv-folder", "venv-end", "torch", "torch-end", "pip-first", "pip-third", "verify", "verify-end"),
    "model": ("download", "download-end", "convert-weights", "convert-config", "convert-end"),
}
CASES = [(what, step, group) for what, steps in STEPS.items() for step in steps for group in (False, True)]


def lines_of(fifo: int) -> str:
    """The next announced steps; blocks until there is one."""
    return os.read(fifo, 4096).decode()


@pytest.mark.parametrize(
    ("what", "step", "group"),
    CASES,
    ids=lambda value: {True: "group", False: "alone"}.get(value, value),
)
def test_killed_at_any_step_nothing_looks_finished_and_the_next_run_succeeds(
    fake: FakeMachine, what: str, step: str, group: bool
) -> None:
    """The marker is written last, the orphans keep the lock, the next run starts over."""
    events = fake.fifo("events")
    try:
        program = fake.start(what)
        while step not in lines_of(events).split():
            pass
        if group:
            os.killpg(program.pid, signal.SIGKILL)
        else:
            program.kill()
        program.wait(60)

        finished_when_killed, done = fake.finished(what), fake.trace()
        del fake.environ["FAKE_EVENTS"]
        built = fake.build(what)
    finally:
        os.close(events)

    # The builder may have got to its end before the kill did.
    assert not finished_when_killed or STEPS[what][-1] in done
    assert fake.finished(what)
    assert built.exists()
    fake.assert_never_two_writers()
    fake.assert_nothing_temporary_is_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda one: one.name)
@pytest.mark.parametrize("what", ["light", "engine"])
def test_a_signal_to_end_also_ends_the_running_program(fake: FakeMachine, what: str, number: int) -> None:
    """
    Ctrl-C, `kill`, a closed terminal: the fake pip, which would wait at its gate for ever, is gone before the builder.
    """
    gate, events = fake.fifo("gate"), fake.fifo("events")
    try:
        program = fake.start(what)
        while "gate" not in lines_of(events).split():
            pass
        program.send_signal(number)
        code = program.wait(60)
        with open(fake.work / "writer", "rb") as writer:
            fcntl.flock(writer, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(gate)
        os.close(events)

    assert code != 0
    assert not fake.finished(what)


@pytest.mark.parametrize("what", ["light", "engine"])
def test_of_two_runs_at_once_the_second_waits_says_so_and_builds_nothing(fake: FakeMachine, what: str) -> None:
    """Both succeed, and everything was installed once."""
    gate = fake.fifo("gate")
    try:
        first = fake.start(what)
        assert first.stdout is not None
        next(iter(first.stdout.readline, ""))
        second = fake.start(what)
        assert second.stdout is not None
        said = second.stdout.readline()
        os.write(gate, b"go\ngo\ngo\n")
        codes = [first.wait(60), second.wait(60)]
    finally:
        os.close(gate)

    assert said.startswith(f"waiting process {first.pid} is installing into ")
    assert codes == [0, 0]
    assert fake.trace().count("venv-folder") == 1
    fake.assert_never_two_writers()


@pytest.mark.parametrize("what", ["light", "engine"])
def test_the_orphan_of_a_killed_run_keeps_others_out_until_it_has_ended(fake: FakeMachine, what: str) -> None:
    """kill -9 of the builder does not stop pip; a second run must not install into the same folder beside it."""
    gate = fake.fifo("gate")
    events = fake.fifo("events")
    try:
        first = fake.start(what)
        while "gate" not in lines_of(events).split():
            pass
        first.kill()
        first.wait(60)
        del fake.environ["FAKE_EVENTS"]
        second = fake.start(what)
        assert second.stdout is not None
        said = second.stdout.readline()
        os.write(gate, b"go\n" * 3)
        code = second.wait(60)
    finally:
        os.close(gate)
        os.close(events)

    assert said.startswith(f"waiting process {first.pid} is installing into ")
    assert code == 0
    assert fake.finished(what)
    fake.assert_never_two_writers()


@pytest.mark.parametrize("what", list(STEPS))
def test_leftovers_of_an_unfinished_build_are_gone_after_the_next(fake: FakeMachine, what: str) -> None:
    """It starts from nothing: a half-written package can look installed to pip."""
    built = fake.build(what)
    (marker,) = fake.folder.rglob(".complete.json")
    marker.unlink()
    leftover = marker.with_name("leftover")
    leftover.write_text("", encoding="utf-8")

    rebuilt = fake.build(what)

    assert rebuilt == built
    assert not leftover.exists()


@pytest.mark.parametrize("what", list(STEPS))
def test_what_is_finished_is_not_built_again(fake: FakeMachine, what: str) -> None:
    """The second run starts no program at all."""
    built = fake.build(what)
    steps = fake.trace()

    assert built == fake.build(what)
    assert steps == fake.trace()


@pytest.mark.parametrize("what", list(STEPS))
@pytest.mark.parametrize("damage", ["", "{", "[]", '{"key": "another", "details": {}}', "\x00"])
def test_a_damaged_marker_counts_as_none(fake: FakeMachine, what: str, damage: str) -> None:
    """Half-written, of another key, of another form: the folder is built anew."""
    built = fake.build(what)
    (marker,) = fake.folder.rglob(".complete.json")
    marker.write_text(damage, encoding="utf-8")

    finished_when_damaged = fake.finished(what)
    rebuilt = fake.build(what)

    assert not finished_when_damaged
    assert rebuilt == built
    assert fake.finished(what)
