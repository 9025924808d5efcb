"""A running fleet as its metrics and its log show it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.cli.fleet_file import FleetFile
from tests.e2e.served import wait_until

LONG_S = 60.0

Key = tuple[str, frozenset[tuple[str, str]]]


@dataclass
class Running:
    """A fleet, and what is known of it from outside."""

    file: FleetFile

    @property
    def port(self) -> int:
        return self.file.served.port

    def samples(self) -> dict[Key, float]:
        """Every sample of the gateway's exposition."""
        text = self.file.served.http.get(f"{self.file.served.admin}/metrics").raise_for_status().text
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def request_lines(self) -> list[dict[str, Any]]:
        """Every canonical line so far."""
        events = (json.loads(line) for line in self.file.served.output.splitlines() if line.startswith('{"time"'))
        return [event for event in events if event["event"] == "request"]

    def settled(self) -> tuple[list[dict[str, Any]], dict[Key, float]]:
        """Lines and samples when nothing is in flight and every line has been read."""

        def whole() -> bool:
            samples = self.samples()
            counted = sum(value for (name, _), value in samples.items() if name == "gateway_requests_total")
            idle = not any(
                value
                for (name, labels), value in samples.items()
                if name in ("gateway_requests_in_flight", "gateway_worker_in_flight")
                or (name == "gateway_upstream_connections" and ("state", "in_use") in labels)
            )
            return idle and counted == len(self.request_lines())

        wait_until(whole, within_s=LONG_S, what="an idle gateway with as many lines as requests")
        return self.request_lines(), self.samples()
