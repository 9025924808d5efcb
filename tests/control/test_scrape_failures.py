"""Workers that give no metrics, or give them forever: an error in words, in time, and nothing that piles up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from gateway.clock import SystemClock
from gateway.control.scrape import ScrapeError, Scraper
from gateway.types import WorkerAddress, WorkerState, WorkerView

pytestmark = pytest.mark.anyio
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n\r\n"


@asynccontextmanager
async def worker(page: bytes, *, then_drip: bool = False) -> AsyncIterator[WorkerView]:
    """A worker that answers with `page`, and then with a byte now and then for as long as it is read."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD + page)
        try:
            while then_drip:
                writer.write(b"\n")
                await writer.drain()
                await asyncio.sleep(0.01)
        except ConnectionError:
            return  # it has left
        finally:
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = WorkerAddress(host="127.0.0.1", port=server.sockets[0].getsockname()[1])
    try:
        yield WorkerView("m-0", "m", WorkerState.READY, "l", address, 0.0)
    finally:
        server.close()


async def test_a_page_that_never_ends_is_given_up_and_the_next_caller_gets_its_turn() -> None:
    """A byte now and then outlives every timeout of a single read."""
    scraper = Scraper(SystemClock(), timeout_s=0.2)
    with anyio.fail_after(20):
        async with worker(b"x 1.0\n", then_drip=True) as view:
            for _ in range(2):
                with pytest.raises(ScrapeError, match=r"m-0 gave no whole page of metrics within 0\.2 s"):
                    await scraper.page(view)


@pytest.mark.parametrize(
    "address",
    [
        WorkerAddress(host="127.0.0.1", port=1, tls=True, tls_ca_file="/nowhere/ca.pem"),
        WorkerAddress(host="a" * 300, port=1),
        WorkerAddress(host="[::", port=1),
    ],
    ids=["certificate gone", "no host name", "no URL"],
)
async def test_an_address_that_cannot_be_asked_is_a_scrape_error(address: WorkerAddress) -> None:
    """And none of another kind, which nobody expects."""
    view = WorkerView("m-0", "m", WorkerState.READY, "l", address, 0.0)
    with anyio.fail_after(20), pytest.raises(ScrapeError, match="m-0 gives no metrics"):
        await Scraper(SystemClock()).page(view)


@pytest.mark.parametrize("key", ["sk-seçret€", "sk-secret\nx"])
async def test_a_key_that_fits_into_no_header_is_not_told(key: str) -> None:
    """The error goes to whoever may read metrics."""
    async with worker(b"x 1.0\n") as view:
        with anyio.fail_after(20), pytest.raises(ScrapeError) as raised:
            await Scraper(SystemClock()).page(replace(view, api_key=key))

    assert "sk-" not in str(raised.value)


async def test_what_a_reload_has_removed_is_forgotten() -> None:
    """A page has up to 32 MiB."""
    scraper = Scraper(SystemClock())
    with anyio.fail_after(20):
        async with worker(b"x 1.0\n") as view:
            for name in ("m-0", "m-1"):
                await scraper.page(replace(view, name=name))
            scraper.forget_all_but({"m-1"})

    assert {"m-1"} == scraper._pages.keys() == scraper._locks.keys()
