"""No load leaves this machine without a yes."""

from __future__ import annotations

from collections.abc import Callable

from loadtest.arrivals import expected_count
from loadtest.plan import RunPlan
from loadtest.target import Target, UsageError


def planned_load(plan: RunPlan) -> str:
    """What a run will send, in words."""
    if plan.arrivals is None:
        return f"{plan.users} users in a closed loop for {plan.duration_s:g} s"
    count = expected_count(plan.arrivals, plan.duration_s)
    return f"about {count:,.0f} sessions ({plan.arrivals}) for {plan.duration_s:g} s"


def check_consent(target: Target, load: str, *, yes: bool, ask: Callable[[str], bool] | None) -> None:
    """
    Lets loopback pass, and anything else only after a yes: `--yes`, or `ask` on a terminal.

    Raises:
        UsageError: no yes; the message says what would be sent.
    """
    if yes or target.is_loopback():
        return
    what = f"{target.url} is not on this machine: would send {load}"
    if ask is None:
        raise UsageError(f"{what}; add --yes to do it")
    if not ask(f"{what}. Do it?"):
        raise UsageError(f"{target.url} is not on this machine, and the answer was not yes: nothing was sent")
