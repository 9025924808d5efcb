"""A real Prometheus that watches a running gateway with our configuration, and its answers to dashboards' queries."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx
import yaml

from tests.e2e.served import free_port, wait_until
from tests.grafana.reading import Target, substituted
from tests.prometheus.promtool import FOLDER, program

SHOWN_S = 60.0
STEP_S = 1.0


@dataclass(frozen=True, slots=True)
class Series:
    """One line of an answer: times in seconds since 1970, values."""

    labels: Mapping[str, str]
    points: Sequence[tuple[float, float]]


class QueryError(Exception):
    """Prometheus refused a query."""


class LivePrometheus:
    """
    Prometheus with the repository's rules and scrape configuration, its addresses and intervals replaced by a test's.

    Args:
        folder: For configuration and samples.
        targets: By job: what to scrape at fixed addresses.
        discoveries: By job: URLs of service discovery.
        replacements: Regular expressions and what they become in the rules: so that an alert need not take minutes.
    """

    def __init__(
        self,
        folder: Path,
        targets: Mapping[str, Sequence[str]],
        discoveries: Mapping[str, str],
        replacements: Sequence[tuple[str, str]] = (),
    ) -> None:
        folder.mkdir()
        self._folder = folder
        self._port = free_port()
        self.url = f"http://127.0.0.1:{self._port}"
        self._http = httpx.Client(base_url=self.url, trust_env=False, timeout=60)
        configuration = yaml.safe_load((FOLDER / "prometheus.yml").read_text(encoding="utf-8"))
        configuration["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
        configuration["scrape_configs"] = [
            *({"job_name": job, "static_configs": [{"targets": list(hosts)}]} for job, hosts in targets.items()),
            *(
                {"job_name": job, "http_sd_configs": [{"url": url, "refresh_interval": "1s"}]}
                for job, url in discoveries.items()
            ),
            # Empty until `also_scrape`. The targets bring their own job.
            {
                "job_name": "replayed",
                "file_sd_configs": [{"files": [str(folder / "more.json")], "refresh_interval": "1s"}],
            },
        ]
        self.also_scrape([])
        (folder / "rules").mkdir()
        for path in (FOLDER / "rules").glob("*.yml"):
            text = path.read_text(encoding="utf-8")
            for pattern, replacement in replacements:
                text = re.sub(pattern, replacement, text)
            (folder / "rules" / path.name).write_text(text, encoding="utf-8")
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration), encoding="utf-8")

    def __enter__(self) -> LivePrometheus:
        found = program("prometheus")
        self._log = (self._folder / "log").open("wb")
        self._process = subprocess.Popen(
            [
                str(found.path),
                f"--config.file={self._folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={self._folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
                "--log.level=warn",
            ],
            env={**os.environ, **found.environ},
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
            start_new_session=True,
        )
        wait_until(self._ready, within_s=120, what="Prometheus ready", context=self.said)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(30)
        self._log.close()
        self._http.close()

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError(f"prometheus ended with {self._process.returncode}\n{self.said()}")
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def said(self) -> str:
        """Its log so far."""
        return (self._folder / "log").read_text(encoding="utf-8")

    def also_scrape(self, targets: Sequence[Mapping[str, object]]) -> None:
        """Further targets from now on, in the form of file discovery."""
        new = self._folder / "more.json.new"
        new.write_text(json.dumps(targets), encoding="utf-8")
        new.replace(self._folder / "more.json")

    def answer(self, target: Target, chosen: Mapping[str, str] | None = None) -> list[Series]:
        """
        What Grafana would draw for a query, everything chosen unless said otherwise.

        Raises QueryError with Prometheus's words when it is refused.
        """
        now = time.time()
        expr = substituted(target.expr, {"job": target.job, **(chosen or {})})
        if target.instant:
            data = self._get("/api/v1/query", query=expr, time=str(now))
        else:
            data = self._get(
                "/api/v1/query_range", query=expr, start=str(now - SHOWN_S), end=str(now), step=str(STEP_S)
            )
        return [
            Series(
                one["metric"],
                [(float(at), float(value)) for at, value in (one["values"] if "values" in one else [one["value"]])],
            )
            for one in data["result"]
        ]

    def value(self, expr: str) -> float | None:
        """The only sample of an instant query; None without one."""
        found = self._get("/api/v1/query", query=expr)["result"]
        return float(found[0]["value"][1]) if found else None

    def alerts(self) -> list[dict[str, Any]]:
        """Every pending and firing alert, with its labels and filled-in annotations."""
        found: list[dict[str, Any]] = self._get("/api/v1/alerts")["alerts"]
        return found

    def label_values(self, selector: str, label: str) -> list[str]:
        """What Grafana offers for a query variable."""
        answer: list[str] = self._get(f"/api/v1/label/{label}/values", **{"match[]": substituted(selector)})
        return answer

    def _get(self, path: str, **parameters: str) -> Any:
        answer = self._http.get(path, params=parameters)
        content = answer.json()
        if answer.status_code != 200 or content["status"] != "success":
            raise QueryError(f"{parameters}: {content.get('error', content)}")
        return content["data"]
