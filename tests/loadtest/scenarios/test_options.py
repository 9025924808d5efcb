"""Options as they are typed: read by their types, refused with what would be right."""

from __future__ import annotations

import pytest

from loadtest.scenarios import scenarios
from loadtest.scenarios.embeddings import Embeddings
from loadtest.scenarios.lengths import Length
from loadtest.scenarios.options import make, options_of
from loadtest.target import UsageError
from tests.loadtest.scenarios.sessions import CONTEXT, made


def test_values_are_read_by_their_types() -> None:
    """Dashes and underscores are the same."""
    scenario = made("embeddings", **{"input-tokens": "5-9", "inputs": "3", "encoding": "base64"})

    assert Embeddings(CONTEXT, 3, Length(5, 9), "base64") == scenario


@pytest.mark.parametrize(
    ("scenario", "option", "value", "message"),
    [
        (
            "chat",
            "promt_tokens",
            "5",
            r"expected an option of chat \(.*\), found 'promt_tokens': did you mean prompt_tok",
        ),
        ("chat", "prompt_tokens", "few", "option prompt_tokens of chat: expected tokens like"),
        ("chat", "output", "long", "expected fixed or free, found 'long'"),
        ("multi-turn", "turns", "two", "expected a whole number, found 'two'"),
        ("multi-turn", "turns", "0", "expected a number from 1 to 1000, found 0"),
        ("cancel", "leave", "1.5", "expected a number from 0 to 1, found 1.5"),
        ("cancel", "early_s", "-1", "expected a number from 0 up, found -1"),
        ("cancel", "early_s", "inf", "expected a number from 0 up, found inf"),
        ("cancel", "leave", "nan", "expected a number from 0 to 1, found nan"),
        ("cancel", "leave", "half", "expected a number, found 'half'"),
    ],
)
def test_what_cannot_be_read_is_named(scenario: str, option: str, value: str, message: str) -> None:
    """With the option, the scenario and what was expected."""
    with pytest.raises(UsageError, match=message):
        make(scenarios()[scenario], CONTEXT, {option: value})


def test_every_option_says_what_it_is_for() -> None:
    """In one line, with its default as it would be typed."""
    for scenario in scenarios().values():
        for option in options_of(scenario):
            assert option.help
            assert "\n" not in option.help
            assert option.default in ("", *option.default.split())
