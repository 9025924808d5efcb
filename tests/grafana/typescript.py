"""
Grafana's published types (npm package @grafana/schema) and the TypeScript compiler, built once into `.build` from the
committed lock.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from gateway.setup.completion import discard, exclusive, finish, finished
from gateway.setup.installer import run_step
from tests.grafana.reading import ROOT

SOURCES = Path(__file__).parent / "schema"
FOLDER = ROOT / ".build" / "grafana-schema"
LOG = ROOT / ".build" / "grafana-schema.log"

RELEASES = {"10.4": "10", "11.6": "11", "13.2": "13"}
"""By release of Grafana: the name under which the lock has its package."""


def modules(environ: Mapping[str, str]) -> Path:
    """The folder with node_modules; skips the test where there is no Node."""
    node = shutil.which("node", path=environ.get("PATH"))
    if node is None or shutil.which("npm", path=environ.get("PATH")) is None:
        pytest.skip("expected node and npm on PATH (Debian, Ubuntu: sudo apt-get install nodejs npm), found none")
    key = hashlib.sha256((SOURCES / "package-lock.json").read_bytes()).hexdigest()[:16]
    with exclusive(ROOT / ".build" / "grafana-schema.lock", lambda holder: None) as lock:
        if finished(FOLDER, key) is None:
            discard(FOLDER)
            FOLDER.mkdir(parents=True)
            for name in ("package.json", "package-lock.json"):
                shutil.copy(SOURCES / name, FOLDER / name)
            npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress"]
            run_step(npm, environ=environ, lock=lock, log=LOG, folder=FOLDER, cwd=FOLDER)
            finish(FOLDER, key, {"node": node})
    return FOLDER


def complaints(release: str, dashboards: Mapping[str, str], folder: Path, environ: Mapping[str, str]) -> str:
    """What the compiler says against dashboards (JSON by name), as that release types them; empty: nothing."""
    built = modules(environ)
    package = built / "node_modules" / f"grafana-schema-{RELEASES[release]}" / "dist"
    new = (package / "types").exists()
    raw = package / ("types" if new else "esm") / "raw" / "dashboard" / "x"
    oldest = built / "node_modules" / "grafana-schema-10" / "dist" / "esm" / "raw"
    paths = {
        "grafana/dashboard": raw / ("types.gen" if new else "dashboard_types.gen"),
        # Later releases keep the query in the data source's own package, which npm does not have.
        "grafana/prometheus": oldest / "composable/prometheus/dataquery/x/PrometheusDataQuery_types.gen",
        "grafana/*": package / "esm" / "raw" / "*",
        "@grafana/schema": package / ("types" if new else "esm") / "index",
    }
    shutil.copy(SOURCES / "dashboard.ts", folder / "dashboard.ts")
    lines = [f"export const {name}: Dashboard = {text.strip()};" for name, text in dashboards.items()]
    (folder / "check.ts").write_text(
        "\n".join(["import type { Dashboard } from './dashboard';", *lines, ""]), encoding="utf-8"
    )
    options = {
        "strict": True,
        "noEmit": True,
        "skipLibCheck": True,
        "module": "esnext",
        "moduleResolution": "bundler",
        "target": "es2022",
        "types": [],
        "paths": {name: [str(path)] for name, path in paths.items()},
    }
    (folder / "tsconfig.json").write_text(json.dumps({"compilerOptions": options, "files": ["check.ts"]}), "utf-8")
    done = subprocess.run(
        ["node", str(built / "node_modules" / "typescript" / "bin" / "tsc"), "-p", str(folder)],
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=100,
    )
    return done.stdout.replace(str(folder) + os.sep, "") if done.returncode else ""
