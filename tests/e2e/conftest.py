"""One real engine for all that only ask it something: a start takes half a minute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.e2e.served import CLOSED_PROXY, Served

START_S = 600


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """
    The default model, started with proxies in the environment that lead nowhere.

    The last test of `test_real_model.py` ends it: what else uses it has to come before, by the names of the files.
    """
    broken = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), CLOSED_PROXY)
    no_exceptions = {"NO_PROXY": "", "no_proxy": ""}
    with Served([], tmp_path_factory.mktemp("state"), environ={**broken, **no_exceptions}) as running:
        running.wait_ready(within_s=START_S)
        yield running
