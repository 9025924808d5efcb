"""
The life of a worker as a table: every state, every event, and nothing else.

```
            START            WARM              SUSPECT
  STOPPED ────────▶ STARTING ─────▶ READY ◀──────────────▶ UNHEALTHY
     ▲                 │  ▲           │  ▲   RECOVERED        │
     │                 │  │ START     │  │ START (resume)     │
     │                 │  │     DRAIN ▼  │                    │
     │                 │  │         DRAINING ◀────────────────┘ DRAIN
     │                 │  │             │
     │        FALL / END  └──────────┐  │ FALL / END          FALL: exited or condemned, nobody asked for it
     │                 ▼             │  ▼                     END:  asked for
     └───────────── STOPPING ──▶ BACKOFF
        GONE           │  GONE_RETRY
                       └──▶ FAILED
                  GONE_GIVE_UP
```

A process exists in STARTING, READY, UNHEALTHY, DRAINING and STOPPING. Every way out of life leads through STOPPING, and
STOPPING is left only when the whole session is confirmed dead: what the worker held (port, GPUs) is free only then.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from gateway.types import WorkerState


class LifeEvent(StrEnum):
    """What can happen to a worker."""

    START = "start"
    WARM = "warm"
    SUSPECT = "suspect"
    RECOVERED = "recovered"
    DRAIN = "drain"
    FALL = "fall"
    END = "end"
    GONE = "gone"
    GONE_RETRY = "gone_retry"
    GONE_GIVE_UP = "gone_give_up"


class IllegalTransition(AssertionError):
    """The owner of a worker made an event that its state does not allow: a fault of this program."""


TRANSITIONS: Mapping[tuple[WorkerState, LifeEvent], WorkerState] = MappingProxyType(
    {
        (WorkerState.STOPPED, LifeEvent.START): WorkerState.STARTING,
        (WorkerState.BACKOFF, LifeEvent.START): WorkerState.STARTING,
        (WorkerState.FAILED, LifeEvent.START): WorkerState.STARTING,
        (WorkerState.DRAINING, LifeEvent.START): WorkerState.READY,
        (WorkerState.STARTING, LifeEvent.WARM): WorkerState.READY,
        (WorkerState.READY, LifeEvent.SUSPECT): WorkerState.UNHEALTHY,
        (WorkerState.UNHEALTHY, LifeEvent.RECOVERED): WorkerState.READY,
        (WorkerState.READY, LifeEvent.DRAIN): WorkerState.DRAINING,
        (WorkerState.UNHEALTHY, LifeEvent.DRAIN): WorkerState.DRAINING,
        (WorkerState.STARTING, LifeEvent.FALL): WorkerState.STOPPING,
        (WorkerState.READY, LifeEvent.FALL): WorkerState.STOPPING,
        (WorkerState.UNHEALTHY, LifeEvent.FALL): WorkerState.STOPPING,
        (WorkerState.DRAINING, LifeEvent.FALL): WorkerState.STOPPING,
        (WorkerState.STARTING, LifeEvent.END): WorkerState.STOPPING,
        (WorkerState.READY, LifeEvent.END): WorkerState.STOPPING,
        (WorkerState.UNHEALTHY, LifeEvent.END): WorkerState.STOPPING,
        (WorkerState.DRAINING, LifeEvent.END): WorkerState.STOPPING,
        (WorkerState.BACKOFF, LifeEvent.END): WorkerState.STOPPED,
        (WorkerState.FAILED, LifeEvent.END): WorkerState.STOPPED,
        (WorkerState.STOPPING, LifeEvent.GONE): WorkerState.STOPPED,
        (WorkerState.STOPPING, LifeEvent.GONE_RETRY): WorkerState.BACKOFF,
        (WorkerState.STOPPING, LifeEvent.GONE_GIVE_UP): WorkerState.FAILED,
    }
)
"""The whole table; a pair that is not in it is illegal."""


def follow(state: WorkerState, event: LifeEvent) -> WorkerState:
    """
    The state after `event`.

    Raises:
        IllegalTransition: the table does not have the pair.
    """
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"a worker that is {state} cannot {event}") from None


def allows(state: WorkerState, event: LifeEvent) -> bool:
    """Is `event` possible in `state`?"""
    return (state, event) in TRANSITIONS
