"""
PromQL as the dashboards use it: a `Scope` carries the label matchers of a page's variables into every expression.

Three rules are kept here, so that no panel can forget them. Rates use `$__rate_interval`. Histograms are summed before
the quantile is taken. An idle system gives no sample rather than NaN: denominators are filtered with `> 0`, and a
quantile of nothing (NaN) fails `>= 0`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RATE_INTERVAL = "$__rate_interval"
RANGE = "$__range"


@dataclass(frozen=True, slots=True)
class Scope:
    """
    The series a page looks at.

    Args:
        matchers: Label matchers that every selector gets, such as `job=~"$job"`.
    """

    matchers: str

    def series(self, metric: str, where: str = "") -> str:
        """The series of a metric within the scope; `where` adds matchers."""
        return f"{metric}{{{', '.join(part for part in (self.matchers, where) if part)}}}"

    def total(self, metric: str, by: Sequence[str] = (), where: str = "") -> str:
        """A gauge, added up."""
        return f"{aggregate('sum', by)} ({self.series(metric, where)})"

    def highest(self, metric: str, by: Sequence[str] = (), where: str = "") -> str:
        """A gauge's largest value."""
        return f"{aggregate('max', by)} ({self.series(metric, where)})"

    def rate(self, metric: str, by: Sequence[str] = (), where: str = "", over: str = RATE_INTERVAL) -> str:
        """A counter per second, added up."""
        return f"{aggregate('sum', by)} (rate({self.series(metric, where)}[{over}]))"

    def increase(self, metric: str, by: Sequence[str] = (), where: str = "", over: str = RANGE) -> str:
        """What a counter grew by within a window, the shown time range unless said otherwise."""
        return f"{aggregate('sum', by)} (increase({self.series(metric, where)}[{over}]))"

    def quantile(
        self, q: float, histogram: str, by: Sequence[str] = (), where: str = "", over: str = RATE_INTERVAL
    ) -> str:
        """A quantile of a histogram, in the histogram's unit; no sample without observations."""
        return f"histogram_quantile({q:g}, {self.rate(f'{histogram}_bucket', ('le', *by), where, over)}) >= 0"

    def mean(self, histogram: str, by: Sequence[str] = (), where: str = "", over: str = RATE_INTERVAL) -> str:
        """The mean of what a histogram observed within the window; no sample without observations."""
        return ratio(self.rate(f"{histogram}_sum", by, where, over), self.rate(f"{histogram}_count", by, where, over))

    def within(self, histogram: str, bound: str, by: Sequence[str] = (), where: str = "") -> str:
        """The share of observations up to a bound, which must be the `le` of a bucket."""
        matchers = ", ".join(part for part in (where, f'le="{bound}"') if part)
        return ratio(self.rate(f"{histogram}_bucket", by, matchers), self.rate(f"{histogram}_count", by, where))

    def buckets(self, histogram: str, where: str = "") -> str:
        """Observations per bucket and step, for a heat map."""
        return f"sum by (le) (increase({self.series(f'{histogram}_bucket', where)}[{RATE_INTERVAL}]))"


def aggregate(operator: str, by: Sequence[str]) -> str:
    """`sum` or `sum by (...)`."""
    return f"{operator} by ({', '.join(by)})" if by else operator


def ratio(numerator: str, denominator: str) -> str:
    """A share; no sample when there is nothing to share."""
    return f"{numerator} / ({denominator} > 0)"


def in_state(state: str) -> str:
    """The matcher of a worker's state."""
    return f'state="{state}"'


def or_zero(expression: str) -> str:
    """Zero where the expression has no sample: for counts whose absence means none."""
    return f"({expression}) or vector(0)"
