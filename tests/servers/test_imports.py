"""gevent and asyncio do not share a process."""

from __future__ import annotations

import subprocess
import sys

MODULES = ("fault_server", "scripts", "simulator", "message_frames")


def test_importing_the_servers_loads_neither_gevent_nor_locust() -> None:
    """Checked in a fresh interpreter, where nothing else could have loaded them."""
    imports = ";".join(f"import loadtest.servers.{name}" for name in MODULES)
    check = "import sys; print(sorted({'gevent', 'locust', 'greenlet'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", f"{imports};{check}"], capture_output=True, text=True, check=True)

    assert found.stdout.strip() == "[]"
