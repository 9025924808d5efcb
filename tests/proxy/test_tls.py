"""Workers behind TLS: the certificate is checked unless the operator says otherwise."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.types import WorkerAddress
from loadtest.servers import frames, scripts
from loadtest.servers.steps import Send
from tests.proxy.conftest import Gateway
from tests.proxy.raw_client import CHAT, ask, chat, post
from tests.proxy.served import worker_view

pytestmark = [pytest.mark.anyio, pytest.mark.integration]  # runs the openssl program

STREAM = b"".join(step.data for step in scripts.chat_stream() if isinstance(step, Send))


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for 127.0.0.1 that signs itself, and its key, in one file."""
    folder = tmp_path_factory.mktemp("tls")
    made = folder / "worker.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=worker", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    made.write_bytes((folder / "cert.pem").read_bytes() + (folder / "key.pem").read_bytes())
    return made


@asynccontextmanager
async def tls_worker(certificate: Path) -> AsyncIterator[int]:
    """A worker that answers every request on a TLS connection with a stream; gives its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
                await reader.readexactly(length)
                writer.write(STREAM)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize(
    ("trusted", "verify", "status"),
    [(True, True, 200), (False, True, 502), (False, False, 200)],
    ids=["trusted", "unknown", "unchecked"],
)
async def test_certificates(gateway: Gateway, certificate: Path, trusted: bool, verify: bool, status: int) -> None:
    """A known authority is accepted, an unknown one only when checking is off."""
    async with asyncio.timeout(20), tls_worker(certificate) as port:
        address = WorkerAddress(
            host="127.0.0.1",
            port=port,
            tls=True,
            tls_ca_file=str(certificate) if trusted else None,
            tls_verify=verify,
        )
        async with gateway(worker_view(name="w0", address=address)) as served:
            for _ in range(2):
                answer = await ask(served.port, post(CHAT, chat(stream_options={"include_usage": True})))
                assert status == answer.status
                if status == 200:
                    assert answer.body.endswith(frames.DONE)
            await served.idle()
