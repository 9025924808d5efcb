"""URLs of static workers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.settings import StaticWorker
from gateway.errors import ConfigurationError
from gateway.types import WorkerAddress
from gateway.workers.addresses import static_address
from gateway.workers.probe import base_url


@pytest.mark.parametrize(
    ("url", "address", "base"),
    [
        ("http://gpu7:8000", WorkerAddress(host="gpu7", port=8000), "http://gpu7:8000"),
        ("http://gpu7", WorkerAddress(host="gpu7", port=80), "http://gpu7:80"),
        ("http://[::1]:9/v/", WorkerAddress(host="::1", port=9, base_path="/v"), "http://[::1]:9/v"),
        ("https://gpu7/a/b", WorkerAddress(host="gpu7", port=443, tls=True, base_path="/a/b"), "https://gpu7:443/a/b"),
        ("unix:///run/w.sock", WorkerAddress(uds="/run/w.sock"), "http://localhost"),
        ("unix:///run/w.sock/p", WorkerAddress(uds="/run/w.sock", base_path="/p"), "http://localhost/p"),
        ("unix:///run/plain", WorkerAddress(uds="/run/plain"), "http://localhost"),
    ],
)
def test_a_url_becomes_an_address_and_back(url: str, address: WorkerAddress, base: str) -> None:
    """Host, port, TLS, socket and prefix are told apart."""
    assert address == static_address(StaticWorker(url=url))
    assert base == base_url(address)


def test_tls_settings_travel_with_the_address() -> None:
    """The authority's file, and whether to check at all."""
    worker = StaticWorker(url="https://h", tls_ca_file=Path("/ca.pem"), tls_verify=False)
    assert ("/ca.pem", False) == (static_address(worker).tls_ca_file, static_address(worker).tls_verify)


@pytest.mark.parametrize(
    "url",
    [
        "gpu7:8000",
        "ftp://gpu7",
        "http://",
        "http://h:99999",
        "http://h:x",
        "http://u:p@h",
        "http://h/?a=1",
        "unix://a/b",
    ],
)
def test_another_form_is_refused_with_the_expected_one(url: str) -> None:
    """The message shows what would be right."""
    with pytest.raises(ConfigurationError, match="expected http://HOST:PORT"):
        static_address(StaticWorker(url=url))
