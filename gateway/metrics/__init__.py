"""
Every metric of the project in one place.

A gateway process counts in a flat array (`SlotCounters` on a `Board`), what has ended some exchanges at a time
(`GatheredCounters`); the supervisor adds the arrays of all processes up (`Totals`) and renders the text (`render`).
Neither uses a library's registry for counting: a `Histogram.observe` costs several times a store into a list, and
rendering would hold streams up for tens of milliseconds.
"""

from gateway.metrics.board import Board
from gateway.metrics.catalogue import CATALOGUE, Metric
from gateway.metrics.cost import CostMeter
from gateway.metrics.counters import CellHistogram, SlotCounters
from gateway.metrics.exposition import CONTENT_TYPE, StartDurations, WorkerReport, render
from gateway.metrics.gathering import GatheredCounters
from gateway.metrics.gpus import gpu_values
from gateway.metrics.layout import Layout
from gateway.metrics.totals import Totals, Values

__all__ = [
    "CATALOGUE",
    "CONTENT_TYPE",
    "Board",
    "CellHistogram",
    "CostMeter",
    "GatheredCounters",
    "Layout",
    "Metric",
    "SlotCounters",
    "StartDurations",
    "Totals",
    "Values",
    "WorkerReport",
    "gpu_values",
    "render",
]
