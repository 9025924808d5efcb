"""The circuit breaker as a state machine."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gateway.fleet import Breaker, BreakerLimits
from gateway.types import CircuitState

LIMITS = BreakerLimits(threshold=3, pause_s=1.0, longest_pause_s=4.0, probe_s=5.0)


def opened(at_s: float = 0.0) -> Breaker:
    breaker = Breaker(LIMITS)
    for _ in range(LIMITS.threshold):
        breaker.failed(breaker.begin(at_s), at_s)
    return breaker


def test_failures_in_a_row_open_it_and_a_success_between_starts_the_count_again() -> None:
    """Two failures, a success, two failures: closed. A third: open."""
    breaker = Breaker(LIMITS)
    for verdict in (breaker.failed, breaker.failed, None, breaker.failed, breaker.failed):
        epoch = breaker.begin(0.0)
        if verdict is None:
            breaker.succeeded(epoch)
        else:
            verdict(epoch, 0.0)
    assert CircuitState.CLOSED is breaker.state

    breaker.failed(breaker.begin(0.0), 0.0)

    assert CircuitState.OPEN is breaker.state
    assert not breaker.admits(0.99)


def test_neutral_attempts_never_open_it() -> None:
    """A client's faults and departures leave no trace, however many, and do not interrupt a row of failures."""
    breaker = Breaker(LIMITS)
    for _ in range(1000):
        breaker.neutral(breaker.begin(0.0), 0.0)
    assert CircuitState.CLOSED is breaker.state

    for _ in range(LIMITS.threshold):
        breaker.failed(breaker.begin(0.0), 0.0)
        breaker.neutral(breaker.begin(0.0), 0.0)

    assert CircuitState.OPEN is breaker.state


def test_after_the_pause_one_probe_goes_and_its_success_closes() -> None:
    """While the probe is out, nobody else is admitted."""
    breaker = opened()
    assert breaker.admits(1.0)

    probe = breaker.begin(1.0)

    assert CircuitState.HALF_OPEN is breaker.state
    assert not breaker.admits(1.0)
    breaker.succeeded(probe)
    assert CircuitState.CLOSED is breaker.state
    assert breaker.admits(1.0)


def test_a_failed_probe_doubles_the_pause_up_to_the_longest() -> None:
    """1, 2, 4, 4 seconds; a success brings the first pause back."""
    breaker = opened()
    now_s = 0.0
    for pause_s in (1.0, 2.0, 4.0, 4.0):
        assert not breaker.admits(now_s + pause_s - 0.01)
        now_s += pause_s
        assert breaker.admits(now_s)
        breaker.failed(breaker.begin(now_s), now_s)
    now_s += 4.0
    breaker.succeeded(breaker.begin(now_s))
    for _ in range(LIMITS.threshold):
        breaker.failed(breaker.begin(now_s), now_s)

    assert breaker.admits(now_s + 1.0)


def test_a_neutral_probe_frees_its_place_at_once() -> None:
    """A client that leaves during the probe does not cost the worker another pause."""
    breaker = opened()
    probe = breaker.begin(1.0)

    breaker.neutral(probe, 1.5)

    assert breaker.admits(1.5)
    assert CircuitState.HALF_OPEN is breaker.state


def test_a_long_probe_does_not_keep_others_away_for_ever() -> None:
    """A probe may be a stream of minutes: after `probe_s` the next one goes."""
    breaker = opened()
    breaker.begin(1.0)

    assert not breaker.admits(5.9)
    assert breaker.admits(6.0)


def test_verdicts_on_attempts_of_an_earlier_epoch_are_ignored() -> None:
    """A stream that began before the trouble neither closes the circuit nor feeds it when it ends."""
    breaker = Breaker(LIMITS)
    old = [breaker.begin(0.0) for _ in range(10)]
    for _ in range(LIMITS.threshold):
        breaker.failed(breaker.begin(0.0), 0.0)

    breaker.succeeded(old[0])
    assert CircuitState.OPEN is breaker.state
    breaker.succeeded(breaker.begin(1.0))
    for epoch in old:
        breaker.failed(epoch, 1.0)

    assert CircuitState.CLOSED is breaker.state


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens in whatever order, the promises of the docstring hold."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(LIMITS)
        self.now_s = 0.0
        self.running: list[int] = []

    @rule(seconds=st.floats(min_value=0.0, max_value=10.0))
    def time_passes(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def begin(self) -> None:
        self.running.append(self.breaker.begin(self.now_s))

    @precondition(lambda self: self.running)
    @rule(data=st.data(), verdict=st.sampled_from(("succeeded", "failed", "neutral")))
    def end(self, data: st.DataObject, verdict: str) -> None:
        epoch = self.running.pop(data.draw(st.integers(0, len(self.running) - 1)))
        before = self.breaker.state
        if verdict == "succeeded":
            self.breaker.succeeded(epoch)
            assert self.breaker.state in (before, CircuitState.CLOSED)
        elif verdict == "failed":
            self.breaker.failed(epoch, self.now_s)
            assert self.breaker.state in (before, CircuitState.OPEN)
        else:
            self.breaker.neutral(epoch, self.now_s)
            assert before is self.breaker.state

    @invariant()
    def never_shut_for_longer_than_the_longest_pause(self) -> None:
        assert self.breaker.admits(self.now_s + max(LIMITS.longest_pause_s, LIMITS.probe_s))

    @invariant()
    def closed_admits(self) -> None:
        assert self.breaker.state is not CircuitState.CLOSED or self.breaker.admits(self.now_s)


TestAnyHistory = AnyHistory.TestCase
