"""Questions to one worker over HTTP. A probe never uses a proxy, whatever the environment says."""

from __future__ import annotations

import json
import ssl
from collections.abc import Mapping
from typing import Any

import httpx

from gateway.types import WorkerAddress
from gateway.workers.services import ModelFacts, ProbeFailure
from gateway.workers.warm_up import Feature

_ITERATIONS = "vllm:iteration_tokens_total_count"
_FACTS_TIMEOUT_S = 10.0
_ONE_TOKEN: tuple[tuple[str, Mapping[str, object]], ...] = (
    ("/v1/completions", {"prompt": "1", "max_tokens": 1, "temperature": 0}),
    ("/v1/embeddings", {"input": "1"}),
)
"""
The smallest request of each kind of model; a pooling model has no `/v1/completions`, the others no embeddings. A model
that knows neither (speech, for one) is not tested this way.
"""
_OTHER_KIND = frozenset({400, 404, 405})


class HttpProber:
    """
    Asks one worker (`Prober`).

    Args:
        model: The served name, for the warm-up request.
        timeout_s: Of `health` and `iterations`.
    """

    def __init__(self, address: WorkerAddress, api_key: str | None, model: str, *, timeout_s: float) -> None:
        self._model = model
        self._timeout_s = timeout_s
        self._routes = _ONE_TOKEN
        self._client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=address.uds, verify=_verification(address), trust_env=False),
            base_url=base_url(address),
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            trust_env=False,
        )

    async def health(self) -> None:
        response = await self._request("GET", "/health", timeout_s=self._timeout_s)
        if response.status_code != 200:
            raise ProbeFailure(f"/health answered {response.status_code}", dead=response.status_code == 503)

    async def facts(self) -> ModelFacts:
        response = await self._request("GET", "/v1/models", timeout_s=_FACTS_TIMEOUT_S)
        models = _json(response, "/v1/models").get("data")
        if response.status_code != 200 or not isinstance(models, list):
            raise ProbeFailure(f"/v1/models answered {response.status_code}: {response.text[:200]}")
        entries = [entry for entry in models if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
        length = next((entry.get("max_model_len") for entry in entries if entry["id"] == self._model), None)
        version = await self._request("GET", "/version", timeout_s=_FACTS_TIMEOUT_S)
        return ModelFacts(
            names=tuple(entry["id"] for entry in entries),
            max_model_len=length if isinstance(length, int) else None,
            engine_version=str(_json(version, "/version").get("version", "")) if version.status_code == 200 else "",
        )

    async def generate(self, timeout_s: float) -> None:
        while self._routes:
            path, body = self._routes[0]
            response = await self._request("POST", path, timeout_s=timeout_s, body={"model": self._model, **body})
            if response.status_code == 200:
                self._routes = self._routes[:1]
                _refuse_aborted(_json(response, path))
                return
            if response.status_code not in _OTHER_KIND:
                raise ProbeFailure(f"a one-token request was answered {response.status_code}: {response.text[:200]}")
            self._routes = self._routes[1:]

    async def try_feature(self, feature: Feature, timeout_s: float) -> bool:
        response = await self._request("POST", feature.path, timeout_s=timeout_s, body=feature.body)
        if 400 <= response.status_code < 500:
            return False
        if response.status_code != 200:
            raise ProbeFailure(f"the first request for {feature.name} was answered {response.status_code}")
        _refuse_aborted(_json(response, feature.path))
        return True

    async def iterations(self) -> float | None:
        response = await self._request("GET", "/metrics", timeout_s=self._timeout_s)
        if response.status_code != 200:
            raise ProbeFailure(f"/metrics answered {response.status_code}")
        return engine_iterations(response.text)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def _request(
        self, method: str, path: str, *, timeout_s: float, body: Mapping[str, object] | None = None
    ) -> httpx.Response:
        try:
            return await self._client.request(method, path, json=body, timeout=timeout_s)
        except httpx.TimeoutException as exc:
            raise ProbeFailure(f"{path} was not answered within {timeout_s:g} s") from exc
        except (httpx.HTTPError, httpx.InvalidURL, ssl.SSLError) as exc:
            raise ProbeFailure(f"{path}: {exc or type(exc).__name__}") from exc


def _refuse_aborted(body: Mapping[str, Any]) -> None:
    """An engine that is stopped under a request ends it with status 200 and this finish reason."""
    choices = body.get("choices")
    if isinstance(choices, list) and any(choice.get("finish_reason") == "abort" for choice in choices):
        raise ProbeFailure("a one-token request was aborted by the engine", dead=True)


def base_url(address: WorkerAddress) -> str:
    """What to put before a path; for a Unix socket the host is only a name for the Host header."""
    scheme = "https" if address.tls else "http"
    if address.uds:
        return f"{scheme}://localhost{address.base_path}"
    host = f"[{address.host}]" if ":" in address.host else address.host
    return f"{scheme}://{host}:{address.port}{address.base_path}"


def engine_iterations(metrics: str) -> float | None:
    """Engine steps over all data-parallel ranks in the text of `/metrics`; None when the metric is not there."""
    total: float | None = None
    for line in metrics.splitlines():
        if line.startswith((_ITERATIONS + "{", _ITERATIONS + " ")):
            try:
                total = (total or 0.0) + float(line.rsplit(" ", 1)[1])
            except ValueError as exc:
                raise ProbeFailure(f"/metrics has a line without a number: {line[:200]}") from exc
    return total


def _verification(address: WorkerAddress) -> ssl.SSLContext | bool:
    if not address.tls:
        return False
    if not address.tls_verify:
        context = ssl.create_default_context()
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    return ssl.create_default_context(cafile=address.tls_ca_file)


def _json(response: httpx.Response, path: str) -> dict[str, Any]:
    try:
        body = response.json()
    except (json.JSONDecodeError, UnicodeDecodeError) as exc:
        raise ProbeFailure(f"{path} answered {response.status_code} with something that is not JSON") from exc
    return body if isinstance(body, dict) else {}
