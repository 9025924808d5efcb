"""The text of `/metrics`: complete, documented, and with what only the supervisor knows."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import promql_parser
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics import CATALOGUE, Layout, StartDurations, Totals, catalogue, render
from gateway.metrics.layout import closed_values
from gateway.metrics.reference import main, markdown
from gateway.types import WorkerState
from gateway.workers.status import WorkerStatus

REFERENCE = Path(__file__).parents[2] / "docs" / "metrics.md"


@dataclass(frozen=True)
class Report:
    """A worker as the exposition sees it."""

    name: str = "llama-0"
    model: str = "llama"
    state: WorkerState = WorkerState.READY
    restart_reasons: tuple[tuple[str, int], ...] = (("exited", 2), ("hung", 1), ("made up", 3))


def text(*workers: Report) -> str:
    totals = Totals()
    board = totals.create(Layout(("llama",), (("llama", "llama-0"),)))
    starts = StartDurations()
    starts.observe("llama", 42.0)
    values = totals.merged()
    totals.retire(board)
    return render(values, workers, starts, {"llama-0": 1.5}).decode()


def test_the_exposition_holds_exactly_the_catalogue() -> None:
    """Every family of the catalogue is exposed with its type, and no other."""
    families = {family.name: family.type for family in text_string_to_metric_families(text(Report()))}

    assert {metric.name.removesuffix("_total"): metric.kind for metric in CATALOGUE} == families


def test_every_exposed_metric_is_documented() -> None:
    """The reference names each family and each of its labels."""
    reference = REFERENCE.read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in reference.splitlines() if line.startswith("| `gateway_")}

    for metric in CATALOGUE:
        assert metric.name in rows
        assert metric.meaning in reference


def test_the_reference_is_current(tmp_path: Path) -> None:
    """`docs/metrics.md` is what the code would write; the check tells when it is not."""
    stale = tmp_path / "metrics.md"
    stale.write_text("old")

    assert markdown() == REFERENCE.read_text(encoding="utf-8")
    assert main(["--check", str(REFERENCE)]) == 0
    assert main(["--check", str(stale)]) == 1
    assert main([str(stale)]) == 0
    assert main(["--check", str(stale)]) == 0


def test_the_recipes_are_queries_of_metrics_that_exist() -> None:
    """Each indented block of the reference's last section parses, and asks for nothing that is not exported."""
    recipes = REFERENCE.read_text(encoding="utf-8").partition("## Recipes")[2]
    # A query begins in the margin of its block; what is indented further goes on with it.
    queries = re.findall(r"^ {4}(\S.*(?:\n {5,}.*)*)", recipes, re.MULTILINE)
    exported = {
        metric.name + suffix
        for metric in CATALOGUE
        for suffix in (("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",))
    }

    assert 5 < len(queries)
    for query in queries:
        promql_parser.parse(query)
        assert set(re.findall(r"gateway_\w+", query)) <= exported, query


def test_a_worker_is_in_exactly_one_state() -> None:
    """One series for each state, one of them 1."""
    states = {
        sample.labels["state"]: sample.value
        for family in text_string_to_metric_families(text(Report()))
        for sample in family.samples
        if sample.name == "gateway_worker_state"
    }

    assert {state: float(state is WorkerState.READY) for state in WorkerState} == states


def test_restarts_starts_and_progress_come_from_the_supervisor() -> None:
    """Restarts by reason, durations of starts by model, the age of the last byte by worker."""
    families = text_string_to_metric_families(text(Report()))
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value for family in families for sample in family.samples
    }

    assert samples["gateway_worker_restarts_total", "exited", "llama", "llama-0"] == 2
    assert samples["gateway_worker_restarts_total", "hung", "llama", "llama-0"] == 1
    assert samples["gateway_worker_restarts_total", "llama", "llama-0", "other"] == 3
    assert samples["gateway_worker_restarts_total", "llama", "llama-0", "requested"] == 0
    assert samples["gateway_worker_progress_age_seconds", "llama", "llama-0"] == 1.5
    assert samples["gateway_worker_start_duration_seconds_sum", "llama"] == 42
    assert samples["gateway_worker_start_duration_seconds_bucket", "30.0", "llama"] == 0
    assert samples["gateway_worker_start_duration_seconds_bucket", "45.0", "llama"] == 1


def test_every_restart_reason_of_the_workers_is_in_the_closed_set() -> None:
    """The words are written in several places; one that is missing here would be counted as `other`."""
    words: set[str] = set()
    for file in (Path(__file__).parents[2] / "gateway" / "workers").glob("*.py"):
        source = file.read_text(encoding="utf-8")
        words.update(re.findall(r'(?:_rule|StartFailure)\(\s*"(\w+)"', source))
        words.update(re.findall(r'^(?:EXITED|HUNG|UNHEALTHY|REQUESTED|BAD_FLAG) = "(\w+)"', source, re.MULTILINE))
    listed = {*catalogue.RESTART_REASONS_WHILE_SERVING, *catalogue.RESTART_REASONS_AT_START}

    assert {"exited", "hung", "unhealthy", "requested", "start_failed", "kv_cache"} <= words
    assert words == listed


def test_a_worker_s_status_is_a_report() -> None:
    """What the supervisor has is what the exposition takes, unchanged."""
    status = WorkerStatus("w", "llama", WorkerState.FAILED, "launch", None, 0.0, restart_reasons=(("exited", 1),))

    assert b'state="failed"' in render({}, [status])


def test_large_label_products_appear_with_their_first_exchange() -> None:
    """No request yet: no series by endpoint; small families are there with zero from the start."""
    lines = text().splitlines()

    assert not [line for line in lines if line.startswith("gateway_requests_total{")]
    assert 'gateway_output_tokens_total{model="llama"} 0.0' in lines


def test_every_label_of_the_processes_metrics_is_a_closed_set() -> None:
    """A label is a configured name or has its values in the vocabulary."""
    for metric in CATALOGUE:
        for label in metric.labels:
            free = label in ("model", "worker", "tenant", "gpu", "uuid", "name")  # configured, or the machine's
            assert free or closed_values(metric, label), (metric.name, label)
