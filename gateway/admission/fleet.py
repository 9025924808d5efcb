"""What admission needs of the fleet; `fleet.FleetDispatcher` has it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Protocol, TypeVar

from gateway.protocol.request import RequestView
from gateway.types import ModelView, Outlook


class Permit(Protocol):
    """A lease on a worker, which is the permit to use it."""

    def hold(self) -> None:
        """Count it from now on, before anybody enters it; leaving it gives it back, entered or not."""
        ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


LeaseT = TypeVar("LeaseT", bound=Permit)
LeaseT_co = TypeVar("LeaseT_co", bound=Permit, covariant=True)


class Fleet(Protocol[LeaseT_co]):
    """The workers and their permits. Pure decisions on the latest snapshot and counts; nothing here waits."""

    @property
    def draining(self) -> bool:
        """No new work may be accepted."""
        ...

    def models(self) -> tuple[ModelView, ...]:
        """All public models, in configuration order."""
        ...

    def resolve(self, name: str) -> ModelView | None:
        """The model that a name or alias means."""
        ...

    def lease(self, model: str, request: RequestView, excluded: frozenset[str], since_s: float) -> LeaseT_co | None:
        """A permit of a worker outside `excluded`, for a request that came at `since_s`; None when none is free."""
        ...

    def outlook(self, model: str, excluded: frozenset[str]) -> Outlook:
        """What there is to wait for when no permit is free."""
        ...

    def claim(self, model: str, firsts: Sequence[tuple[float, frozenset[str]]]) -> None:
        """
        Tell the other gateway processes who is first in line here.

        Args:
            firsts: Since when, and excluding which workers; empty when nobody waits.
        """
        ...

    def on_release(self, model: str, released: Callable[[], None]) -> None:
        """`released` is called whenever a permit of a model with a limit has been given back in this process."""
        ...
