"""Where files are kept, from the environment alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import EnvironmentProblem
from gateway.setup.directories import Directories, directories


@pytest.mark.parametrize(
    ("environ", "cache", "state"),
    [
        ({"HOME": "/h"}, "/h/.cache/vllm-gateway", "/h/.local/state/vllm-gateway"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "/c", "XDG_STATE_HOME": "/s"}, "/c/vllm-gateway", "/s/vllm-gateway"),
        ({"HOME": "/h", "XDG_CACHE_HOME": "", "XDG_STATE_HOME": "relative"}, "/h/.cache/vllm-gateway",
         "/h/.local/state/vllm-gateway"),
        ({"HOME": "/h", "GATEWAY_CACHE_DIR": "/c", "GATEWAY_STATE_DIR": "/s"}, "/c", "/s"),
        ({"XDG_CACHE_HOME": "/c", "GATEWAY_STATE_DIR": "/s"}, "/c/vllm-gateway", "/s"),
    ],
)  # fmt: skip
def test_own_variables_win_over_xdg_over_home(environ: dict[str, str], cache: str, state: str) -> None:
    """Empty and relative XDG values count as unset, as their specification asks."""
    assert Directories(Path(cache), Path(state)) == directories(environ)


def test_nothing_to_go_by_is_an_error_that_names_the_variables() -> None:
    """Never a guess such as the working directory."""
    with pytest.raises(EnvironmentProblem, match=r"HOME, XDG_CACHE_HOME and GATEWAY_CACHE_DIR are unset") as caught:
        directories({})

    # Whoever sets only the first would be sent back once more for the second.
    assert all(name in caught.value.fix for name in ("HOME", "GATEWAY_CACHE_DIR", "GATEWAY_STATE_DIR"))


def test_an_own_directory_must_be_absolute() -> None:
    """A relative one would be another folder for every working directory."""
    with pytest.raises(EnvironmentProblem, match="GATEWAY_STATE_DIR must be an absolute path"):
        directories({"HOME": "/h", "GATEWAY_STATE_DIR": "state"})
