"""Lengths in tokens: a fixed number, or a distribution to draw from."""

from __future__ import annotations

import math
import random
import re
from dataclasses import dataclass

_NORMAL_P95 = 1.6448536269514722
"""95th percentile of the standard normal distribution."""
_FORM = re.compile(
    r"(?P<fixed>\d+)|(?P<low>\d+)-(?P<high>\d+)|lognormal:(?P<median>\d+):(?P<p95>\d+)(?::(?P<most>\d+))?"
)


@dataclass(frozen=True, slots=True)
class Length:
    """
    A number of tokens to draw. Written `200` (always), `50-400` (uniform) or `lognormal:200:800` (median and 95th
    percentile, the shape of real prompts; nothing above twice the latter, or above a third number).
    """

    low: int
    high: int
    sigma: float = 0.0
    """Of a log-normal distribution with median `low` and 95th percentile `high`; 0: uniform."""
    most: int | None = None
    """Where the log-normal distribution is cut."""

    @classmethod
    def parse(cls, text: str) -> Length:
        """
        Reads the notation above.

        Raises:
            ValueError: another notation, zero, or bounds in the wrong order.
        """
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise ValueError(f"expected tokens like 200, 50-400 or lognormal:200:800, found {text!r}")
        if match["fixed"]:
            low = high = int(match["fixed"])
        else:
            low, high = (int(match[name]) for name in (("low", "high") if match["low"] else ("median", "p95")))
        if not 0 < low <= high:
            raise ValueError(f"expected tokens from 1 up, the smaller number first, found {text!r}")
        sigma = math.log(high / low) / _NORMAL_P95 if match["median"] else 0.0
        if match["most"] and int(match["most"]) < high:
            raise ValueError(f"expected tokens in ascending order (median, 95th percentile, limit), found {text!r}")
        return cls(low, high, sigma, int(match["most"]) if match["most"] else None)

    def draw(self, rng: random.Random) -> int:
        """One length, at least 1."""
        if self.sigma:
            return max(1, min(self.longest, round(rng.lognormvariate(math.log(self.low), self.sigma))))
        return self.low if self.low == self.high else rng.randint(self.low, self.high)

    @property
    def longest(self) -> int:
        """The greatest length that can be drawn."""
        return (self.most or 2 * self.high) if self.sigma else self.high

    def __str__(self) -> str:
        if self.sigma:
            return f"lognormal:{self.low}:{self.high}" + (f":{self.most}" if self.most else "")
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


def fixed(tokens: int) -> Length:
    """Always so many."""
    return Length(tokens, tokens)
