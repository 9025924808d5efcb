"""The comparison of a client with the golden server's log: what it calls an error."""

from __future__ import annotations

import pytest

from loadtest.bench.measurement import compare

SENT = {"a": [1.0, 2.0, 3.0], "b": [1.5, 2.5, 3.5]}


def test_a_client_that_is_right_has_no_errors() -> None:
    """A constant lateness is one of the first token, and none of the gaps."""
    same = compare("c", SENT, SENT)
    late = compare("c", {"a": [1.002, 2.002, 3.002]}, SENT)

    assert (same.ttft.largest, same.gap.largest, same.good) == (0, 0, True)
    assert (late.ttft.p50, late.gap.largest) == (pytest.approx(0.002), pytest.approx(0, abs=1e-9))
    assert not late.good


def test_a_token_late_by_itself_is_two_wrong_gaps() -> None:
    """Early is as wrong as late."""
    found = compare("c", {"a": [1.0, 2.25, 3.0]}, SENT)

    assert (found.gap.samples, found.gap.p50, found.gap.largest) == (2, 0.25, 0.25)


def test_a_lost_token_ends_the_comparison() -> None:
    """Nothing could be paired after it."""
    with pytest.raises(SystemExit, match="expected 3 tokens in a, as the server sent, found 2"):
        compare("c", {"a": [1.0, 2.0]}, SENT)
