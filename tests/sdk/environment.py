"""
Builds what the SDK matrix drives: the Python SDKs in an environment of their own, the Node SDK beside it. Both lie in
`.build` of the checkout, from committed locks, and are finished iff their completion marker says so.

    python -m tests.sdk.environment        make sdk-clients; ends at once when there is nothing to do
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from gateway.setup.completion import discard, exclusive, finish, finished
from gateway.setup.installer import StepFailed, pip_lines, requirements_in, run_step
from gateway.setup.progress import ProgressPrinter, Report, SetupProgress

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "requirements" / "sdk-clients.txt"
NODE_SOURCES = ROOT / "tests" / "sdk" / "node"
PYTHON_FOLDER = ROOT / ".build" / "sdk-clients"
NODE_FOLDER = ROOT / ".build" / "sdk-clients-node"
LOG = ROOT / ".build" / "sdk-clients.log"
HOW = "make sdk-clients"
NO_NODE = "Node.js with npm (node and npm on PATH; Debian, Ubuntu: sudo apt-get install nodejs npm)"


def python_key() -> str:
    """What the Python environment was built from."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    return f"{digest[:16]}-py{'.'.join(map(str, sys.version_info[:3]))}-{ROOT}"


def node_key(node: str) -> str:
    """What the Node modules were built from."""
    digest = hashlib.sha256((NODE_SOURCES / "package-lock.json").read_bytes()).hexdigest()
    return f"{digest[:16]}-{node}"


def node_version(environ: Mapping[str, str]) -> str | None:
    """The version of node on PATH; None when node or npm is missing."""
    path = environ.get("PATH")
    node = shutil.which("node", path=path)
    if node is None or shutil.which("npm", path=path) is None:
        return None
    return subprocess.run([node, "--version"], check=True, capture_output=True, text=True).stdout.strip()


def built_python() -> Path | None:
    """The interpreter that has the SDKs; None when it has to be built."""
    python = PYTHON_FOLDER / "bin" / "python"
    return python if finished(PYTHON_FOLDER, python_key()) is not None and python.exists() else None


def built_node(environ: Mapping[str, str]) -> Path | None:
    """The folder that holds node_modules; None when it has to be built or there is no node."""
    node = node_version(environ)
    return NODE_FOLDER if node is not None and finished(NODE_FOLDER, node_key(node)) is not None else None


def build_python(environ: Mapping[str, str], report: Report, lock: int) -> None:
    """Install the locked SDKs; raises StepFailed."""
    total = requirements_in(LOCK.read_text(encoding="utf-8"))
    report(SetupProgress("sdks", "installing", f"{total} Python packages into {PYTHON_FOLDER}"))
    discard(PYTHON_FOLDER)
    base = getattr(sys, "_base_executable", "") or sys.executable
    run_step([base, "-I", "-m", "venv", str(PYTHON_FOLDER)], environ=environ, lock=lock, log=LOG, folder=PYTHON_FOLDER)
    python = PYTHON_FOLDER / "bin" / "python"
    pip = [str(python), "-I", "-u", "-m", "pip", "install", "--disable-pip-version-check"]
    run_step(
        [*pip, "--require-hashes", "--only-binary", ":all:", "-r", str(LOCK)],
        environ=environ,
        lock=lock,
        log=LOG,
        folder=PYTHON_FOLDER,
        on_line=pip_lines("sdks", total, report),
    )
    finish(PYTHON_FOLDER, python_key(), {"python": str(python)})
    report(SetupProgress("sdks", "ready", str(PYTHON_FOLDER)))


def build_node(node: str, environ: Mapping[str, str], report: Report, lock: int) -> None:
    """Install the locked Node modules; raises StepFailed."""
    report(SetupProgress("sdks", "installing", f"Node modules into {NODE_FOLDER}"))
    discard(NODE_FOLDER)
    NODE_FOLDER.mkdir(parents=True)
    for name in ("package.json", "package-lock.json"):
        shutil.copy(NODE_SOURCES / name, NODE_FOLDER / name)
    npm = ["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-progress"]
    run_step(npm, environ=environ, lock=lock, log=LOG, folder=NODE_FOLDER, cwd=NODE_FOLDER)
    finish(NODE_FOLDER, node_key(node), {"node": node})
    report(SetupProgress("sdks", "ready", str(NODE_FOLDER)))


def main(environ: Mapping[str, str]) -> int:
    """Exit code 0 when everything this machine can run is built, 3 when a build failed; a missing node is only said."""
    node = node_version(environ)
    if node is None:
        print(f"The Node SDK is left out: expected {NO_NODE}, found none.", file=sys.stderr)
    if built_python() is not None and (node is None or built_node(environ) is not None):
        return 0
    report = ProgressPrinter(sys.stderr)

    def waiting(holder: str) -> None:
        report(SetupProgress("sdks", "waiting", f"process {holder} is installing"))

    try:
        with exclusive(ROOT / ".build" / "sdk-clients.lock", waiting) as lock:
            if built_python() is None:
                build_python(environ, report, lock)
            if node is not None and built_node(environ) is None:
                build_node(node, environ, report, lock)
    except StepFailed as failure:
        print(
            f"The SDK clients could not be installed ({failure}): {failure.reason}; everything printed is in {LOG}. "
            f"To mend it: check the network or the configuration of pip and npm, then run `{HOW}` again.",
            file=sys.stderr,
        )
        return 3
    except KeyboardInterrupt:
        print("Interrupted; the next run starts over.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(os.environ))
