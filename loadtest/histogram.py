"""Mergeable histograms of durations: logarithmic buckets, 0.5 % wide, so percentiles are off by at most 0.25 %."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

_WIDTH = math.log(1.005)
_SMALLEST = 1e-6


@dataclass(slots=True)
class DurationHistogram:
    """Counts of seconds. Values under a microsecond share the lowest bucket; the extremes are kept exactly."""

    buckets: dict[int, int] = field(default_factory=dict)
    count: int = 0
    sum: float = 0.0
    min: float = math.inf
    max: float = 0.0

    def add(self, seconds: float) -> None:
        """Counts one value."""
        bucket = math.ceil(math.log(max(seconds, _SMALLEST) / _SMALLEST) / _WIDTH)
        self.buckets[bucket] = self.buckets.get(bucket, 0) + 1
        self.count += 1
        self.sum += seconds
        self.min, self.max = min(self.min, seconds), max(self.max, seconds)

    def merge(self, other: DurationHistogram) -> None:
        """Adds another histogram's values to this one's."""
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
        self.count += other.count
        self.sum += other.sum
        self.min, self.max = min(self.min, other.min), max(self.max, other.max)

    @property
    def mean(self) -> float | None:
        """The mean, exact; None without values."""
        return self.sum / self.count if self.count else None

    def percentile(self, p: float) -> float | None:
        """The value at or under which a share `p` (0 to 1) of all values lies; None without values."""
        if not self.count:
            return None
        rank, seen = max(1, math.ceil(p * self.count)), 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                middle = _SMALLEST * math.exp((bucket - 0.5) * _WIDTH)
                return min(max(middle, self.min), self.max)
        return self.max

    def edges(self) -> Iterator[tuple[float, int]]:
        """Each bucket in use as (upper edge in seconds, count), ascending; for drawing and for coarser buckets."""
        for bucket in sorted(self.buckets):
            yield _SMALLEST * math.exp(bucket * _WIDTH), self.buckets[bucket]

    def well_founded(self, p: float) -> bool:
        """Whether there are the 10 / (1 - p) values that a percentile needs to mean something."""
        return p >= 1 or self.count * (1 - p) >= 10

    def to_json(self) -> dict[str, Any]:
        """Everything, for merging later."""
        low = self.min if self.count else None
        buckets = {str(k): v for k, v in sorted(self.buckets.items())}
        return {"count": self.count, "sum": self.sum, "min": low, "max": self.max, "buckets": buckets}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> DurationHistogram:
        """The inverse of `to_json`."""
        buckets = {int(k): int(v) for k, v in value["buckets"].items()}
        low = math.inf if value["min"] is None else float(value["min"])
        return cls(buckets, int(value["count"]), float(value["sum"]), low, float(value["max"]))
