"""The planner: what differs, what may be done now, and that a roll never takes a model below its minimum."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from gateway.control.planner import Action, Present, Step, Wanted, difference, due
from gateway.types import WorkerState

READY = WorkerState.READY


def wanted(*names: str, model: str = "m", revision: str = "new") -> list[Wanted]:
    return [Wanted(name, model, revision) for name in names]


def present(**states: WorkerState) -> list[Present]:
    """Workers of model `m` with the old revision; `m_0=READY` is called m-0."""
    return [Present(name.replace("_", "-"), "m", "old", state) for name, state in states.items()]


def names(steps: tuple[Step, ...]) -> list[str]:
    return [f"{step.action} {step.worker}" for step in steps]


def test_nothing_differs_nothing_happens() -> None:
    fleet = present(m_0=READY, m_1=READY)

    assert () == difference(wanted("m-0", "m-1", revision="old"), fleet)
    assert () == due(wanted("m-0", "m-1", revision="old"), fleet)


def test_the_difference_names_what_is_new_changed_and_no_longer_wanted() -> None:
    fleet = present(m_0=READY, m_1=READY, m_2=READY)
    goal = [*wanted("m-0", revision="old"), *wanted("m-1", "m-3"), *wanted("n-0", model="n")]

    assert ["start m-3", "start n-0", "replace m-1", "stop m-2"] == names(difference(goal, fleet))


def test_serving_workers_are_replaced_one_at_a_time() -> None:
    """The second one waits while the first is under way, and may go once that is READY with the new revision."""
    goal = wanted("m-0", "m-1", "m-2")
    fleet = present(m_0=READY, m_1=READY, m_2=READY)

    assert ["replace m-0"] == names(due(goal, fleet))
    fleet[0] = replace(fleet[0], revision="new", state=WorkerState.STARTING, moving=True)
    assert [] == names(due(goal, fleet))
    fleet[0] = replace(fleet[0], state=READY, moving=False)
    assert ["replace m-1"] == names(due(goal, fleet))


@pytest.mark.parametrize(("minimum", "expected"), [(3, 1), (2, 1), (1, 2), (0, 3), (-1, 3), (99, 1)])
def test_the_minimum_says_how_many_go_at_once(minimum: int, expected: int) -> None:
    """More than all but one cannot be kept, or nothing could be done."""
    goal = wanted("m-0", "m-1", "m-2")

    assert expected == len(due(goal, present(m_0=READY, m_1=READY, m_2=READY), minimum={"m": minimum}))


def test_a_single_worker_is_replaced_although_its_model_has_none_meanwhile() -> None:
    assert ["replace m-0"] == names(due(wanted("m-0"), present(m_0=READY)))


@pytest.mark.parametrize(
    "state",
    [WorkerState.STARTING, WorkerState.UNHEALTHY, WorkerState.BACKOFF, WorkerState.STOPPING],
)
def test_a_worker_that_serves_nobody_goes_first_and_alone(state: WorkerState) -> None:
    """It costs nothing to replace it, and the serving ones wait until it serves."""
    goal = wanted("m-0", "m-1")

    assert ["replace m-1"] == names(due(goal, present(m_0=READY, m_1=state)))


@pytest.mark.parametrize("state", [WorkerState.STOPPED, WorkerState.FAILED, WorkerState.DRAINING])
def test_a_worker_that_will_not_come_by_itself_does_not_hold_up_the_others(state: WorkerState) -> None:
    """It counts for nothing: not as available, not as one that could be."""
    goal = [*wanted("m-0"), *wanted("m-1", revision="old")]

    assert ["replace m-0"] == names(due(goal, present(m_0=READY, m_1=state)))


def test_a_fleet_that_serves_nobody_tries_the_new_options_on_one_worker() -> None:
    """All are down: the first replacement shows whether the others are worth trying."""
    goal = wanted("m-0", "m-1", "m-2")
    fleet = present(m_0=WorkerState.BACKOFF, m_1=WorkerState.BACKOFF, m_2=WorkerState.BACKOFF)

    assert ["replace m-0"] == names(due(goal, fleet))


def test_new_workers_start_at_once_and_one_that_moves_is_left_alone() -> None:
    goal = wanted("m-0", "m-1", "m-2")
    fleet = [replace(present(m_0=WorkerState.DRAINING)[0], moving=True)]

    assert ["start m-1", "start m-2"] == names(due(goal, fleet))


def test_workers_no_longer_wanted_go_once_the_others_can_serve() -> None:
    goal = wanted("m-0", revision="old")

    assert ["stop m-1", "stop m-2"] == names(due(goal, present(m_0=READY, m_1=READY, m_2=READY)))
    assert ["stop m-2"] == names(due(goal, present(m_0=WorkerState.STARTING, m_1=READY, m_2=WorkerState.BACKOFF)))


def test_a_model_no_longer_wanted_goes_whatever_it_serves() -> None:
    assert ["stop m-0", "stop m-1"] == names(due([], present(m_0=READY, m_1=READY)))


def test_models_do_not_wait_for_each_other_and_a_halted_one_stands_still() -> None:
    goal = [*wanted("m-0", "m-1"), *wanted("n-0", "n-1", model="n")]
    fleet = [*present(m_0=READY, m_1=READY), *(Present(f"n-{i}", "n", "old", READY) for i in range(2))]

    assert ["replace m-0", "replace n-0"] == names(due(goal, fleet))
    assert ["replace n-0"] == names(due(goal, fleet, halted={"m"}))


def test_no_roll_ever_has_fewer_available_than_its_minimum() -> None:
    """Every fleet of three in every state, every minimum: what is due, taken away at once, leaves enough or what was
    there."""
    goal = wanted("m-0", "m-1", "m-2")
    for states in product(WorkerState, repeat=3):
        fleet = [Present(f"m-{index}", "m", "old", state) for index, state in enumerate(states)]
        ready = sum(state is READY for state in states)
        alive = sum(state not in (WorkerState.STOPPED, WorkerState.FAILED, WorkerState.DRAINING) for state in states)
        for minimum in range(4):
            steps = due(goal, fleet, minimum={"m": minimum})
            taken = sum(fleet[int(step.worker[-1])].state is READY for step in steps)
            floor = min(minimum, max(0, alive - 1))
            assert taken == 0 or ready - taken >= floor, (states, minimum, steps)


def test_every_roll_ends() -> None:
    """Carried out step by step, with every worker becoming READY, each fleet reaches the goal."""
    goal = [*wanted("m-0", "m-1", "m-3")]
    for states in product(WorkerState, repeat=3):
        fleet = {f"m-{index}": Present(f"m-{index}", "m", "old", state) for index, state in enumerate(states)}
        for _ in range(20):
            if not difference(goal, list(fleet.values())):
                break
            steps = due(goal, list(fleet.values()))
            if not steps:
                # Nothing is due while others come up; they do.
                fleet = {name: replace(worker, state=READY) for name, worker in fleet.items()}
            for step in steps:
                if step.action is Action.STOP:
                    del fleet[step.worker]
                else:
                    fleet[step.worker] = Present(step.worker, "m", "new", READY)
        assert {"m-0", "m-1", "m-3"} == set(fleet), states
        assert {"new"} == {worker.revision for worker in fleet.values()}
