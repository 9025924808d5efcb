"""
Workers' own metrics, fetched by the supervisor and nobody else.

However many scrapers ask, a worker is asked at most once a second: rendering its metrics takes time from the event loop
that serves tokens.
"""

from __future__ import annotations

import ssl
from collections.abc import Collection
from dataclasses import dataclass

import anyio
import httpx

from gateway.clock import Clock
from gateway.errors import GatewayError
from gateway.types import WorkerAddress, WorkerView

MAX_AGE_S = 1.0
TIMEOUT_S = 5.0
"""For the whole page: a worker that sends a byte now and then must not hold up whoever asks next."""
MAX_PAGE_BYTES = 32 * 1024 * 1024


class ScrapeError(GatewayError):
    """The worker gave no metrics."""


@dataclass(frozen=True, slots=True)
class Page:
    """What the worker answered, and when (CLOCK_MONOTONIC seconds)."""

    text: bytes
    content_type: str
    launch_id: str
    at_s: float


class Scraper:
    """
    Keeps the last page of every worker.

    Args:
        clock: For the pages' age.
        timeout_s: For one page.
    """

    def __init__(self, clock: Clock, timeout_s: float = TIMEOUT_S) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._pages: dict[str, Page] = {}
        self._locks: dict[str, anyio.Lock] = {}
        self._contexts: dict[tuple[str | None, bool], ssl.SSLContext] = {}

    async def page(self, worker: WorkerView) -> Page:
        """The worker's metrics, at most a second old. Raises ScrapeError when it does not answer."""
        async with self._locks.setdefault(worker.name, anyio.Lock()):
            known = self._pages.get(worker.name)
            if (
                known is not None
                and known.launch_id == worker.launch_id
                and self._clock.monotonic() - known.at_s < MAX_AGE_S
            ):
                return known
            page = await self._fetch(worker)
            self._pages[worker.name] = page
            return page

    def forget_all_but(self, workers: Collection[str]) -> None:
        """Drop the pages of workers that a reload has removed."""
        for name in self._pages.keys() - workers:
            del self._pages[name]
        for name in self._locks.keys() - workers:
            if not self._locks[name].statistics().locked:
                del self._locks[name]

    async def _fetch(self, worker: WorkerView) -> Page:
        address = worker.address
        if not address.uds and not address.host:
            raise ScrapeError(f"worker {worker.name} has no process now ({worker.state})")
        headers = {"authorization": f"Bearer {worker.api_key}"} if worker.api_key else {}
        try:
            with anyio.fail_after(self._timeout_s):
                return await self._read(worker, headers)
        except TimeoutError as exc:
            raise ScrapeError(
                f"worker {worker.name} gave no whole page of metrics within {self._timeout_s:g} s"
            ) from exc
        except httpx.LocalProtocolError as exc:
            # Its text quotes the header, and with it the key.
            raise ScrapeError(f"worker {worker.name} cannot be asked: its api_key fits into no header") from exc
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as exc:
            # Beyond HTTP: a certificate file that is gone, a key or a host that no header or URL can carry.
            raise ScrapeError(f"worker {worker.name} gives no metrics: {exc or type(exc).__name__}") from exc

    async def _read(self, worker: WorkerView, headers: dict[str, str]) -> Page:
        address = worker.address
        async with (
            client(address, self._context(address)) as http,
            http.stream("GET", "metrics", headers=headers) as answer,
        ):
            if answer.status_code != 200:
                raise ScrapeError(f"worker {worker.name} answered {answer.status_code} to /metrics")
            text = bytearray()
            async for chunk in answer.aiter_bytes():
                text += chunk
                if len(text) > MAX_PAGE_BYTES:
                    raise ScrapeError(f"worker {worker.name} has more than {MAX_PAGE_BYTES} bytes of metrics")
            content_type = answer.headers.get("content-type", "text/plain; version=0.0.4")
        return Page(bytes(text), content_type, worker.launch_id, self._clock.monotonic())

    def _context(self, address: WorkerAddress) -> ssl.SSLContext | None:
        """Made once: reading the certificate authorities takes the event loop 16 ms."""
        if not address.tls:
            return None
        key = (address.tls_ca_file, address.tls_verify)
        context = self._contexts.get(key)
        if context is None:
            context = self._contexts[key] = ssl.create_default_context(cafile=address.tls_ca_file)
            if not address.tls_verify:
                context.check_hostname = False
                context.verify_mode = ssl.CERT_NONE
        return context


def client(address: WorkerAddress, context: ssl.SSLContext | None) -> httpx.AsyncClient:
    """
    An HTTP client for one worker. It ignores proxy variables: a worker is never behind the operator's proxy.

    Args:
        context: For an address with TLS; None: TLS is not used, and nothing is prepared for it.
    """
    host = "worker" if address.uds else f"[{address.host}]" if ":" in address.host else address.host
    port = "" if address.uds else f":{address.port}"
    return httpx.AsyncClient(
        base_url=f"{'https' if address.tls else 'http'}://{host}{port}{address.base_path}/",
        transport=httpx.AsyncHTTPTransport(uds=address.uds, verify=context or False, trust_env=False),
        timeout=TIMEOUT_S,
        trust_env=False,
    )
