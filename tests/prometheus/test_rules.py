"""The Prometheus configuration and rules, tried with the real promtool."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.prometheus.cases import CASES, Case
from tests.prometheus.promtool import FOLDER, RULES, promtool

pytestmark = pytest.mark.integration


def groups() -> list[dict[str, Any]]:
    """Every group of rules."""
    return [group for path in RULES for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]]


def alerts() -> dict[str, dict[str, Any]]:
    """Every alert by its name."""
    return {rule["alert"]: rule for group in groups() for rule in group["rules"] if "alert" in rule}


def firing(case: Case, at: str, labels: Iterable[str]) -> dict[str, Any]:
    """promtool's test that exactly the alert's own series fires at that time, or none."""
    return {
        "expr": f'ALERTS{{alertname="{case.alert}", alertstate="firing"}}',
        "eval_time": at,
        "exp_samples": [{"labels": text, "value": 1} for text in labels],
    }


def written(cases: Iterable[Case]) -> dict[str, Any]:
    """promtool's test file for cases of one step."""
    tests = []
    step = "1m"
    for case in cases:
        step = case.step
        rule = alerts()[case.alert]
        labels = {"alertname": case.alert, "alertstate": "firing", **rule["labels"], **case.labels}
        text = "ALERTS{" + ", ".join(f'{name}="{value}"' for name, value in labels.items()) + "}"
        tests.append(
            {
                "interval": case.step,
                "name": case.alert,
                "input_series": [{"series": series, "values": values} for series, values in case.series.items()],
                "promql_expr_test": [
                    firing(case, case.quiet_at, []),
                    firing(case, case.fires_at, [text]),
                    firing(case, case.resolved_at, []),
                ],
            }
        )
    return {
        "rule_files": [str(path) for path in RULES],
        # promtool's own order is random. In a server it does not matter: a recording is at most one evaluation old.
        "group_eval_order": [
            group["name"] for group in sorted(groups(), key=lambda group: "alert" in group["rules"][0])
        ],
        "evaluation_interval": step,
        "tests": tests,
    }


def test_the_configuration_is_valid() -> None:
    """With the rule files it names."""
    done = promtool("check", "config", str(FOLDER / "prometheus.yml"))

    assert 0 == done.returncode, done.stdout


def test_the_rules_are_valid() -> None:
    """Templates in the annotations included."""
    done = promtool("check", "rules", *map(str, RULES))

    assert 0 == done.returncode, done.stdout


@pytest.mark.parametrize("step", ["1m", "5m", "30m"])
def test_every_alert_is_quiet_then_fires_then_resolves(step: str, tmp_path: Path) -> None:
    """Nothing else of the same alert fires meanwhile: the samples are compared as a whole."""
    cases = [case for case in CASES if case.step == step]
    file = tmp_path / "cases.yml"
    file.write_text(yaml.safe_dump(written(cases)), encoding="utf-8")

    done = promtool("test", "rules", str(file))

    assert cases
    assert 0 == done.returncode, done.stdout


def test_no_alert_is_without_a_case() -> None:
    """And none is tried twice."""
    assert sorted(alerts()) == sorted(case.alert for case in CASES)


@pytest.mark.parametrize("alert", alerts())
def test_an_alert_says_what_is_wrong_and_what_to_do(alert: str) -> None:
    """And can be routed; docs/observability.md has it in its table."""
    rule = alerts()[alert]
    documented = (FOLDER.parents[1] / "docs" / "observability.md").read_text(encoding="utf-8")

    known = {name for case in CASES if case.alert == alert for name in case.labels}

    assert {"summary", "description", "runbook"} == set(rule["annotations"])
    assert set(re.findall(r"\$labels\.(\w+)", "".join(rule["annotations"].values()))) <= known
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert "vllm-gateway" == rule["labels"]["product"]
    assert f"`{alert}`" in documented
