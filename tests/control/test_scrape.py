"""Scraping a worker behind TLS: the certificate is checked as the configuration says, and prepared for once."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gateway.clock import SystemClock
from gateway.control.scrape import ScrapeError, Scraper
from gateway.types import WorkerAddress, WorkerState, WorkerView

pytestmark = [pytest.mark.anyio, pytest.mark.integration]  # runs the openssl program

PAGE = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 5\r\nconnection: close\r\n\r\nx 1.0"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=worker", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")),
        ],
        check=True,
        capture_output=True,
    )
    return folder / "cert.pem", folder / "key.pem"


@asynccontextmanager
async def worker(certificate: tuple[Path, Path]) -> AsyncIterator[int]:
    """A worker on TLS that has one metric; gives its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(PAGE)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()


@pytest.mark.parametrize(
    ("trusted", "verify"), [(True, True), (False, False), (False, True)], ids=["trusted", "unchecked", "unknown"]
)
async def test_a_worker_s_certificate_is_checked_unless_the_operator_says_otherwise(
    certificate: tuple[Path, Path], trusted: bool, verify: bool
) -> None:
    """A page from a worker that proves who it is, or needs not to; an error that says why from one that cannot."""
    scraper = Scraper(SystemClock())
    async with asyncio.timeout(20), worker(certificate) as port:
        address = WorkerAddress(
            "127.0.0.1", port, tls=True, tls_ca_file=str(certificate[0]) if trusted else None, tls_verify=verify
        )
        views = [WorkerView(f"w{n}", "m", WorkerState.READY, "l", address, 0.0) for n in range(2)]
        if trusted or not verify:
            assert [b"x 1.0", b"x 1.0"] == [(await scraper.page(view)).text for view in views]
        else:
            with pytest.raises(ScrapeError, match=r"w0 gives no metrics.*certificate"):
                await scraper.page(views[0])
    assert 1 == len(scraper._contexts)
