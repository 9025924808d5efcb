"""The routing of a whole fleet: one scheduler for each model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gateway.candidate import Candidate
from gateway.routing.decision import Decision, Prompt, Question
from gateway.routing.policies import scheduler
from gateway.routing.scheduler import Scheduler
from gateway.types import Policy


class Router:
    """
    Chooses workers for all models; implements what `fleet` calls its scheduler.

    Args:
        policies: Policy by model name; models without take `default`.
    """

    def __init__(self, policies: Mapping[str, Policy] | None = None, default: Policy = Policy.LEAST_LOADED) -> None:
        self._policies = dict(policies or {})
        self._default = default
        self._schedulers: dict[str, Scheduler] = {}

    def choose(
        self, model: str, prompt: Prompt, excluded: frozenset[str], candidates: Sequence[Candidate]
    ) -> Decision | None:
        """The best worker of a configured model (never a client's own word: schedulers are kept by its name)."""
        chosen = self._schedulers.get(model)
        if chosen is None:
            chosen = self._schedulers[model] = scheduler(self._policies.get(model, self._default))
        return chosen.choose(Question(model, prompt, excluded), candidates)
