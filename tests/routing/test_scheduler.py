"""The choice of a worker: filters, scores, ties, and an explanation that agrees with the choice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.candidate import Candidate
from gateway.routing import Question, Router, Scheduler, scheduler
from gateway.types import DecisionReason, Policy, WorkerState

QUESTION = Question("llama")

states = st.sampled_from(WorkerState)
fleets = st.lists(
    st.builds(
        Candidate,
        worker=st.sampled_from([f"w{number}" for number in range(8)]),
        state=states,
        in_flight=st.integers(0, 50),
        admits=st.booleans(),
        full=st.booleans(),
    ),
    max_size=8,
    unique_by=lambda candidate: candidate.worker,
)
exclusions = st.frozensets(st.sampled_from([f"w{number}" for number in range(8)]), max_size=3)


def ready(*in_flight: int) -> list[Candidate]:
    return [Candidate(f"w{index}", WorkerState.READY, load, True) for index, load in enumerate(in_flight)]


@pytest.mark.parametrize("policy", Policy)
@given(fleets, exclusions)
def test_the_chosen_may_serve_and_nobody_may_when_none_is_chosen(
    policy: Policy, candidates: list[Candidate], excluded: frozenset[str]
) -> None:
    """
    READY, not excluded and not full, always; with an open circuit only when every such worker's is open and no trusted
    worker is merely full, which is worth waiting for.
    """
    decision = scheduler(policy).choose(Question("llama", excluded=excluded), candidates)

    allowed = {c.worker: c for c in candidates if c.state is WorkerState.READY and c.worker not in excluded}
    free = {worker for worker, candidate in allowed.items() if not candidate.full}
    trusted = {worker for worker, candidate in allowed.items() if candidate.admits}
    if decision is None:
        assert set() == free & trusted
        assert set() == free or trusted
        return
    assert decision.worker in free
    failing_open = not trusted
    assert failing_open is (decision.reason is DecisionReason.FAIL_OPEN)
    assert failing_open or decision.worker in trusted


@pytest.mark.parametrize("policy", Policy)
@given(fleets, exclusions)
def test_the_explanation_names_every_candidate_and_agrees_with_the_choice(
    policy: Policy, candidates: list[Candidate], excluded: frozenset[str]
) -> None:
    """Each candidate once, with a score in [0, 1] or a reason; nobody scores above the chosen."""
    decision = scheduler(policy).choose(Question("llama", excluded=excluded), candidates)
    if decision is None:
        return

    considered = {one.worker: one for one in decision.considered()}

    assert {candidate.worker for candidate in candidates} == set(considered)
    assert len(candidates) == len(decision.considered())
    scores = {one.worker: one.score for one in considered.values() if one.score is not None}
    assert all(0 <= score <= 1 for score in scores.values())
    assert scores[decision.worker] == max(scores.values())
    assert all(one.rejected for one in considered.values() if one.score is None)


@given(fleets)
def test_least_loaded_takes_a_least_loaded(candidates: list[Candidate]) -> None:
    """Among those that may serve, none has fewer attempts in flight."""
    decision = scheduler(Policy.LEAST_LOADED).choose(QUESTION, candidates)
    if decision is None:
        return

    loads = {candidate.worker: candidate.in_flight for candidate in decision.scored}
    assert min(loads.values()) == loads[decision.worker]


@pytest.mark.parametrize("policy", Policy)
@given(st.integers(1, 8), st.integers(1, 200), st.integers(0, 5))
def test_ties_rotate(policy: Policy, workers: int, decisions: int, load: int) -> None:
    """Equal workers are chosen equally often, to within one, at every moment."""
    chooser = scheduler(policy)
    counts = Counter({f"w{index}": 0 for index in range(workers)})
    for _ in range(decisions):
        decision = chooser.choose(QUESTION, ready(*[load] * workers))
        assert decision is not None
        counts[decision.worker] += 1
        assert max(counts.values()) - min(counts.values()) <= 1


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_a_worker_that_is_away_now_and_then_gives_its_turns_to_all(away: list[bool]) -> None:
    """The neighbour of an absent worker does not inherit its turns: the two others stay equal to within one."""
    chooser = scheduler(Policy.ROUND_ROBIN)
    counts = Counter({"w1": 0, "w2": 0})
    for absent in away:
        candidates = ready(0, 0, 0)
        if absent:
            candidates[0].state = WorkerState.STARTING
        decision = chooser.choose(QUESTION, candidates)
        assert decision is not None
        counts[decision.worker] += decision.worker != "w0"
    assert abs(counts["w1"] - counts["w2"]) <= 1


@pytest.mark.parametrize(
    ("in_flight", "worker", "reason"),
    [((3,), "w0", "only"), ((3, 2, 5), "w1", "best_score"), ((1, 0, 0), "w1", "tie")],
)
def test_the_reason_says_why(in_flight: tuple[int, ...], worker: str, reason: str) -> None:
    """The label of the decision metric."""
    decision = scheduler().choose(QUESTION, ready(*in_flight))

    assert decision is not None
    assert (worker, reason, "least_loaded") == (decision.worker, decision.reason, decision.policy)


def test_the_explanation_says_why_not() -> None:
    """State, an earlier attempt, an open circuit: each in a word, after those that were scored, best first."""
    candidates = [
        Candidate("starting", WorkerState.STARTING, 0, True),
        Candidate("tried", WorkerState.READY, 0, True),
        Candidate("suspect", WorkerState.READY, 0, False),
        Candidate("busy", WorkerState.READY, 4, True),
        Candidate("idle", WorkerState.READY, 1, True),
    ]

    decision = scheduler().choose(Question("llama", excluded=frozenset({"tried"})), candidates)

    assert decision is not None
    assert [
        ("idle", 0.75, ""),
        ("busy", 0.0, ""),
        ("starting", None, "starting"),
        ("tried", None, "tried before"),
        ("suspect", None, "circuit open"),
    ] == [(one.worker, one.score, one.rejected) for one in decision.considered()]


class Fixed:
    """A scorer that answers what it was given."""

    def __init__(self, *scores: float) -> None:
        self._scores = scores

    def scores(self, question: Question, candidates: Sequence[Candidate]) -> Sequence[float]:
        return self._scores


def test_scores_are_weighted_and_values_out_of_range_clamped() -> None:
    """A scorer that shouts (7 instead of 1) has no more say than its weight."""
    chooser = Scheduler(Policy.LEAST_LOADED, [(3.0, Fixed(1.0, 0.0)), (1.0, Fixed(-5.0, 7.0))])

    decision = chooser.choose(QUESTION, ready(0, 0))

    assert decision is not None
    assert [0.75, 0.25] == list(decision.scores)
    assert "w0" == decision.worker


def test_each_model_has_its_own_policy_and_turns() -> None:
    """Alternating requests for two models do not send all of one model's to one worker."""
    router = Router({"b": Policy.ROUND_ROBIN})
    counts: Counter[tuple[str, str, str]] = Counter()
    for _ in range(10):
        for model in ("a", "b"):
            decision = router.choose(model, b"", frozenset(), ready(0, 0))
            assert decision is not None
            counts[model, decision.policy, decision.worker] += 1

    assert {5} == set(counts.values())
    assert {("a", "least_loaded"), ("b", "round_robin")} == {key[:2] for key in counts}


def test_no_candidates_no_choice() -> None:
    """None, not an error: the caller waits or answers 503."""
    assert scheduler().choose(QUESTION, []) is None
