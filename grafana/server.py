"""A Grafana that is on PATH: how it is started, and with which settings it shows the dashboards at once."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGED_HOME = Path("/usr/share/grafana")
"""Where Grafana's Debian and RPM packages put its static files."""
DEPLOYED_PROMETHEUS = "http://127.0.0.1:9090"
DEPLOYED_DASHBOARDS = "/var/lib/grafana/dashboards/vllm-gateway"
"""What the committed provisioning files name."""


@dataclass(frozen=True, slots=True)
class FoundGrafana:
    """The command that starts it in the foreground."""

    command: Sequence[str]


def find_grafana(environ: Mapping[str, str], packaged_home: Path = PACKAGED_HOME) -> FoundGrafana | None:
    """`grafana server`, or `grafana-server` as releases before 9.4 have it; None when neither is on PATH."""
    for name, verb in (("grafana", ["server"]), ("grafana-server", [])):
        program = shutil.which(name, path=environ.get("PATH"))
        if program is None:
            continue
        # From an archive the files lie beside bin/; a package puts a link or a script into /usr.
        beside = Path(program).resolve().parent.parent
        home = beside if (beside / "conf" / "defaults.ini").is_file() else packaged_home
        return FoundGrafana([program, *verb, "--homepath", str(home)])
    return None


def grafana_environment(data: Path, provisioning: Path, dashboards: Path, port: int) -> dict[str, str]:
    """Settings for a viewer on this machine: loopback, no login, nothing sent anywhere, the overview comes first."""
    return {
        "GF_SERVER_HTTP_ADDR": "127.0.0.1",
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_PATHS_DATA": str(data),
        "GF_PATHS_LOGS": str(data / "log"),
        "GF_PATHS_PLUGINS": str(data / "plugins"),
        "GF_PATHS_PROVISIONING": str(provisioning),
        "GF_AUTH_ANONYMOUS_ENABLED": "true",
        "GF_AUTH_ANONYMOUS_ORG_ROLE": "Viewer",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
        "GF_ANALYTICS_CHECK_FOR_PLUGIN_UPDATES": "false",
        "GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH": str(dashboards / "overview.json"),
    }


def write_provisioning(source: Path, target: Path, *, prometheus: str, dashboards: Path) -> None:
    """The committed provisioning files with this machine's addresses in them."""
    for file in sorted(source.rglob("*.yml")):
        text = file.read_text(encoding="utf-8")
        text = text.replace(DEPLOYED_PROMETHEUS, prometheus).replace(DEPLOYED_DASHBOARDS, str(dashboards))
        written = target / file.relative_to(source)
        written.parent.mkdir(parents=True, exist_ok=True)
        written.write_text(text, encoding="utf-8")
