"""What Prometheus sees of a running load test: the books, in families that the documentation names."""

from __future__ import annotations

import re
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from loadtest.ledger import Ledger, RequestRecord
from loadtest.outcomes import Outcome
from loadtest.report.endpoint import MetricsEndpoint
from loadtest.report.metrics import FAMILIES, OUTCOMES, Family, RunCollector
from loadtest.target import UsageError

DOCUMENT = Path(__file__).parents[3] / "docs" / "loadtest-metrics.md"


@dataclass(frozen=True)
class Latest:
    at_s: float = 2.0
    send_lag_max_s: float = 0.25


def record(outcome: Outcome, **changes: object) -> RequestRecord:
    times = {"scheduled_s": 0.0, "sent_s": 0.0, "first_token_s": 0.1, "last_token_s": 0.2, "gaps_s": (0.1,)}
    return RequestRecord("id", outcome=outcome, **{**times, "token_events": 2, **changes})  # type: ignore[arg-type]


def scraped(ledger: Ledger, latest: Latest | None = None) -> dict[tuple[str, str], float]:
    registry = CollectorRegistry()
    registry.register(RunCollector({"scenario": "chat", "duration_s": 30}, lambda: (ledger, latest)))
    text = generate_latest(registry).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    return {(s.name, next(iter(s.labels.values()), "")): s.value for s in samples}


def test_every_request_is_in_exactly_one_outcome() -> None:
    """Scheduled = the sum over outcomes + in flight; a status without a label of its own is `http_other`."""
    ends = [
        record(Outcome.OK),
        record(Outcome.UNSENT),
        record(Outcome.CANCELLED),
        record(Outcome.HTTP_STATUS, status=503),
        record(Outcome.HTTP_STATUS, status=418),
    ]
    ledger = Ledger.of(ends)
    ledger.schedule()
    seen = scraped(ledger)
    outcomes = {label: value for (name, label), value in seen.items() if name == "loadtest_requests_total"}

    assert set(OUTCOMES) == set(outcomes)
    assert {"ok", "unsent", "cancelled", "http_503", "http_other"} == {k for k, value in outcomes.items() if value}
    assert seen["loadtest_scheduled_requests_total", ""] == 6
    assert sum(outcomes.values()) + seen["loadtest_in_flight_requests", ""] == 6


def test_histograms_hold_successes_only_and_end_at_infinity() -> None:
    """A failure must not improve a percentile in a dashboard either."""
    ledger = Ledger.of([record(Outcome.OK), record(Outcome.OK, first_token_s=1000.0), record(Outcome.RESET)])
    seen = scraped(ledger)

    assert seen["loadtest_time_to_first_token_seconds_bucket", "0.08"] == 0
    assert seen["loadtest_time_to_first_token_seconds_bucket", "0.15"] == 1
    assert seen["loadtest_time_to_first_token_seconds_bucket", "640.0"] == 1
    assert seen["loadtest_time_to_first_token_seconds_bucket", "+Inf"] == 2
    assert seen["loadtest_time_to_first_token_seconds_count", ""] == 2


def test_scrapes_at_once_and_in_turn_count_every_success_once() -> None:
    """Each scrape counts only what is new; two at the same time do not count it twice."""
    ledger = Ledger.of(record(Outcome.OK) for _ in range(400))
    registry = CollectorRegistry()
    registry.register(RunCollector({}, lambda: (ledger, None)))
    with ThreadPoolExecutor(4) as pool:
        texts = list(pool.map(lambda _: generate_latest(registry).decode(), range(4)))
    ledger.schedule()
    ledger.settle(record(Outcome.OK))

    assert all("loadtest_token_event_gap_seconds_count 400.0" in text for text in texts)
    assert "loadtest_token_event_gap_seconds_count 401.0" in generate_latest(registry).decode()


def test_the_first_scrape_may_come_before_the_first_sample() -> None:
    """All families are there at once, so that a dashboard has no gaps of its own making."""
    empty, later = scraped(Ledger()), scraped(Ledger(), Latest())

    assert set(empty) == set(later)
    assert (empty["loadtest_send_lag_seconds", ""], later["loadtest_send_lag_seconds", ""]) == (0, 0.25)


def test_the_page_documents_every_family_and_no_other() -> None:
    """Name, type, labels and meaning as in the code; all label values."""
    text = DOCUMENT.read_text()
    rows = re.findall(r"^\| `(loadtest_\w+)` \| (\w+) \| (.*?) \| (.*?) \|$", text, re.MULTILINE)

    def row(family: Family) -> tuple[str, str, str, str]:
        return family.name, family.kind, ", ".join(f"`{label}`" for label in family.labels) or "–", family.help

    assert [row(family) for family in FAMILIES] == rows
    assert f"| `outcome` | {', '.join(f'`{outcome}`' for outcome in OUTCOMES)} |" in text


def test_the_endpoint_serves_the_books_and_gives_its_port_back() -> None:
    """One scrape over HTTP; the port is free after the run, and a taken one is named with its option."""
    ledger = Ledger()
    with MetricsEndpoint(0, {}, lambda: ledger, lambda: None) as endpoint:
        ledger.schedule()
        text = httpx.get(endpoint.url, trust_env=False).text
        port = int(endpoint.url.split(":")[2].split("/")[0])
        with pytest.raises(UsageError, match="--metrics-port"), MetricsEndpoint(port, {}, Ledger, lambda: None):
            pass

    assert "loadtest_scheduled_requests_total 1.0" in text
    with socket.socket() as probe, pytest.raises(ConnectionRefusedError):
        probe.connect(("127.0.0.1", port))
