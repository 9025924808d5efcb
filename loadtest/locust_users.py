"""The Locust user of a run: a closed-loop user, or the one dispatcher of an open loop. Needs gevent's patch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from locust import User, task
from locust.env import Environment
from locust.exception import StopUser

from loadtest.generator import Generator
from loadtest.ledger import RequestRecord
from loadtest.outcomes import Outcome
from loadtest.plan import RunPlan


class FailedRequestError(Exception):
    """What Locust is told about a request that failed."""


def user_class(plan: RunPlan, generator: Generator | None) -> type[User]:
    """
    A class whose every instance runs the generator until the end of the run and then leaves.

    The master knows the class by its name only and has no generator.
    """
    open_loop = plan.users is None

    class LoadUser(User):
        """Runs its share of the load in one task."""

        @task
        def run_load(self) -> None:
            """Until the end of the run; streams in flight are waited for."""
            assert generator is not None, "the master starts no users"
            try:
                if open_loop:
                    generator.dispatch()
                else:
                    generator.use()
            except Exception as error:
                # Locust would log it and call the task again, for ever.
                generator.breaks(error)
            raise StopUser

    return LoadUser


def teller(environment: Environment) -> Callable[[RequestRecord], None]:
    """
    Tells Locust of every request that was sent: one event each, so that its totals agree with the books.

    Token events are not told: each would count as a request there.
    """

    requests: Any = environment.events.request

    def tell(record: RequestRecord) -> None:
        failed = record.outcome not in (Outcome.OK, Outcome.CANCELLED)
        requests.fire(
            request_type="POST",
            name=record.kind,
            response_time=1000 * (record.ended_s - record.scheduled_s),
            response_length=record.token_events,
            exception=FailedRequestError(f"{record.outcome}: {record.detail}") if failed else None,
            context={},
        )

    return tell
