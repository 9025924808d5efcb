"""A fingerprint of what a run sends, so that two results can be seen to have had the same load."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from loadtest.outcomes import Outcome
from loadtest.scenarios.base import Answer, Scenario, session_rng

SESSIONS = 32
_SALT = "digest"


def bodies_digest(scenario: Scenario, seed: int) -> str:
    """
    A digest of the first sessions' requests, in order, with one fixed answer to each.

    Not of what was sent in the end: how far a run gets depends on time, and what is quoted depends on the answers. The
    run's salt is left out, so that two runs with the same seed, options and calibration have the same digest.
    """
    source: Any = scenario
    unsalted: Scenario = replace(source, context=replace(scenario.context, salt=_SALT))
    digest = hashlib.sha256()
    for number in range(SESSIONS):
        session = unsalted.session(session_rng(seed, number), number)
        request = next(session, None)
        while request is not None:
            digest.update(f"{request.kind} {request.path} {request.tenant} {len(request.body)}\n".encode())
            digest.update(request.body)
            try:
                request = session.send(Answer("As asked.", Outcome.OK))
            except StopIteration:
                request = None
    return digest.hexdigest()[:16]
