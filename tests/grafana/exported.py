"""Names of the series that exist: ours from the catalogues, vLLM's from recorded expositions, Prometheus's own."""

from __future__ import annotations

from collections.abc import Iterator

import yaml
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.catalogue import CATALOGUE
from loadtest.report.metrics import FAMILIES
from tests.grafana.reading import RECORDED, ROOT

RULES = ROOT / "deploy" / "prometheus" / "rules"
OF_PROMETHEUS = frozenset({"up", "scrape_duration_seconds", "ALERTS"})
"""Made by Prometheus itself for every target and alert."""
SUFFIXES = {"histogram": ("_bucket", "_count", "_sum")}


def ours() -> frozenset[str]:
    """Series names of the gateway and of the load generator."""
    described = [(metric.name, metric.kind) for metric in CATALOGUE] + [(one.name, one.kind) for one in FAMILIES]
    return frozenset(name + suffix for name, kind in described for suffix in SUFFIXES.get(kind, ("",)))


def recorded(release: str = "") -> frozenset[str]:
    """Series names of the recorded vLLM expositions, or of those whose file name begins with `release`."""
    names = set()
    for path in RECORDED.glob(f"{release or 'vllm-'}*.txt"):
        for family in text_string_to_metric_families(path.read_text(encoding="utf-8")):
            names |= {sample.name for sample in family.samples}
    return frozenset(names)


def rules() -> Iterator[dict[str, str]]:
    """Every rule of `deploy/prometheus/rules`."""
    for path in sorted(RULES.glob("*.yml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            yield from group["rules"]


def recording_rules() -> frozenset[str]:
    """Series that the recording rules make."""
    return frozenset(rule["record"] for rule in rules() if "record" in rule)


def known() -> frozenset[str]:
    """Every name that may be queried."""
    return ours() | recorded() | recording_rules() | OF_PROMETHEUS
