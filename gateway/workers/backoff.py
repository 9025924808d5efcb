"""When a fallen worker is started again, and when it is given up: a pure calculation."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from gateway.config.settings import Watch


@dataclass(frozen=True, slots=True)
class Failures:
    """How many times in a row a worker fell without a stable period between."""

    in_row: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to do after a fall: wait `pause_s` and start again, or (None) give up."""

    failures: Failures
    pause_s: float | None


def after_fall(failures: Failures, *, served_s: float | None, permanent: bool, watch: Watch, random: Random) -> Verdict:
    """
    Judge one fall.

    Args:
        served_s: Seconds the worker had been serving since it became READY; None when it never did.
        permanent: Starting again without a change cannot succeed.
        random: For the jitter: the pause is between half and the whole of the doubled value, so that replicas that
            died together do not come back together.
    """
    if permanent:
        return Verdict(Failures(failures.in_row + 1), None)
    stable = served_s is not None and served_s >= watch.stable_after_s
    in_row = 1 if stable else failures.in_row + 1
    if in_row >= watch.max_fast_failures and not stable:
        return Verdict(Failures(in_row), None)
    # The exponent is limited because 2.0**1024 overflows long before a pause of `backoff_max_s` is in doubt.
    full = min(watch.backoff_max_s, watch.backoff_initial_s * 2.0 ** min(in_row - 1, 60))
    return Verdict(Failures(in_row), full * (0.5 + 0.5 * random.random()))
