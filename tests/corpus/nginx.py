"""A real nginx in front of a gateway, listening on a Unix socket: a port could be taken before nginx binds it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from gateway.setup.progress import SetupProgress
from gateway.setup.system import ensure_program
from tests.proxy.raw_client import RawConnection

ROOT = Path(__file__).resolve().parents[2]
SOCKET = "listen unix:{socket};"
DEFAULT = "server {{ " + SOCKET + " location / {{ proxy_pass http://127.0.0.1:{port}; {more} }} }}"
"""Nothing but where to listen and where to pass requests: buffering is on, and backends are spoken to in HTTP/1.0."""
TEMPORARY = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")


def documented() -> str:
    """The configuration that users are told to take, with a test's addresses in the place of theirs."""
    (block,) = re.findall(r"```nginx\n(.*?)```", (ROOT / "docs/behind-a-proxy.md").read_text("utf-8"), re.DOTALL)
    template = block.replace("{", "{{").replace("}", "}}")
    for address, place in (("listen 80;", SOCKET), ("server 127.0.0.1:8000;", "server 127.0.0.1:{port};")):
        assert template.count(address) == 1, address
        template = template.replace(address, place)
    return template


@asynccontextmanager
async def nginx(template: str, port: int, *, more: str = "") -> AsyncIterator[Path]:
    """
    nginx with the `http` part of its configuration in place of `template`'s names; yields the socket it listens on.

    Args:
        port: Where the gateway listens.
        more: Further directives of a template that has a place for them.
    """
    # Short, because a socket's path may have 107 bytes.
    with tempfile.TemporaryDirectory(prefix="nginx-") as folder:
        socket = Path(folder) / "socket"
        temporary = "".join(f"{name}_temp_path {folder}/{name};\n" for name in TEMPORARY)
        http = template.format(socket=socket, port=port, more=more)
        file = Path(folder) / "nginx.conf"
        file.write_text(
            f"daemon off; master_process off; pid {folder}/pid; error_log stderr warn;\n"
            f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{http}\n}}\n",
            encoding="utf-8",
        )
        found = await asyncio.to_thread(ensure_program, "nginx", ROOT, os.environ, _said)
        said = Path(folder) / "said"
        with said.open("wb") as output:
            process = await asyncio.create_subprocess_exec(
                *(str(found.path), "-c", str(file), "-p", folder),
                env={**os.environ, **found.environ},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        try:
            while not await _listens(socket):
                assert process.returncode is None, said.read_text("utf-8")
                await asyncio.sleep(0.02)
            yield socket
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@asynccontextmanager
async def through(socket: Path) -> AsyncIterator[RawConnection]:
    """A client's connection to nginx that is gone afterwards."""
    reader, writer = await asyncio.open_unix_connection(socket)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def _listens(socket: Path) -> bool:
    try:
        async with through(socket):
            return True
    except OSError:
        return False


def _said(progress: SetupProgress) -> None:
    """pytest shows what fails; progress is of no interest here."""
