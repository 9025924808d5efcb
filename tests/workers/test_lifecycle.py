"""The table of a worker's life, pair by pair."""

from __future__ import annotations

import itertools

import pytest

from gateway.types import WorkerState
from gateway.workers.lifecycle import TRANSITIONS, IllegalTransition, LifeEvent, allows, follow

STOPPED, STARTING, READY, UNHEALTHY, DRAINING, STOPPING, BACKOFF, FAILED = WorkerState

EXPECTED = {
    STOPPED: {LifeEvent.START: STARTING},
    STARTING: {LifeEvent.WARM: READY, LifeEvent.FALL: STOPPING, LifeEvent.END: STOPPING},
    READY: {
        LifeEvent.SUSPECT: UNHEALTHY,
        LifeEvent.DRAIN: DRAINING,
        LifeEvent.FALL: STOPPING,
        LifeEvent.END: STOPPING,
    },
    UNHEALTHY: {
        LifeEvent.RECOVERED: READY,
        LifeEvent.DRAIN: DRAINING,
        LifeEvent.FALL: STOPPING,
        LifeEvent.END: STOPPING,
    },
    DRAINING: {LifeEvent.START: READY, LifeEvent.FALL: STOPPING, LifeEvent.END: STOPPING},
    STOPPING: {LifeEvent.GONE: STOPPED, LifeEvent.GONE_RETRY: BACKOFF, LifeEvent.GONE_GIVE_UP: FAILED},
    BACKOFF: {LifeEvent.START: STARTING, LifeEvent.END: STOPPED},
    FAILED: {LifeEvent.START: STARTING, LifeEvent.END: STOPPED},
}


@pytest.mark.parametrize(("state", "event"), list(itertools.product(WorkerState, LifeEvent)))
def test_every_pair_of_state_and_event(state: WorkerState, event: LifeEvent) -> None:
    """Each of the pairs either leads where it should, or is refused with both words in the message."""
    expected = EXPECTED[state].get(event)
    if expected is None:
        assert not allows(state, event)
        with pytest.raises(IllegalTransition, match=f"{state} cannot {event}"):
            follow(state, event)
    else:
        assert allows(state, event)
        assert expected is follow(state, event)


WITH_PROCESS = frozenset(
    {
        WorkerState.STARTING,
        WorkerState.READY,
        WorkerState.UNHEALTHY,
        WorkerState.DRAINING,
        WorkerState.STOPPING,
    }
)
"""States in which a process of the worker may exist."""


def test_only_stopping_leads_out_of_the_states_with_a_process() -> None:
    """What a worker holds is given back in one place only: after STOPPING."""
    leaving = {
        state for (state, _), after in TRANSITIONS.items() if state in WITH_PROCESS and after not in WITH_PROCESS
    }
    assert {STOPPING} == leaving


def test_every_state_can_be_reached_and_left() -> None:
    """No dead end, not even FAILED."""
    assert set(WorkerState) == set(TRANSITIONS.values())
    assert set(WorkerState) == {state for state, _ in TRANSITIONS}
