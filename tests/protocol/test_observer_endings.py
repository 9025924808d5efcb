"""How the stream observer judges the end of a stream, and what it takes for an error inside one."""

from __future__ import annotations

import pytest

from gateway.protocol.observer import Ending
from tests.protocol.observed import DONE, LAST, ROLE, TOKEN, chunk, event, observe


@pytest.mark.parametrize("reason", ["stop", "length", "tool_calls", "content_filter", "function_call"])
def test_c56_every_finish_reason_is_an_end(reason: str) -> None:
    """With vLLM's extra field beside it."""
    last = chunk(finish=reason)
    observer = observe(event(TOKEN), event(last), DONE)

    assert (Ending.COMPLETE, {0: reason}) == (observer.verdict().ending, observer.finish_reasons)


def test_c56_an_abort_is_a_failure() -> None:
    """vLLM ends a request like that when it is stopped itself."""
    verdict = observe(event(TOKEN), event(chunk(finish="abort")), DONE).verdict()

    assert Ending.ABORTED is verdict.ending


@pytest.mark.parametrize("pieces", [(), (event(ROLE),), (event(ROLE), event(TOKEN))])
@pytest.mark.parametrize("clean_end", [True, False])
def test_c01_c05_a_stream_without_finish_is_incomplete(pieces: tuple[bytes, ...], clean_end: bool) -> None:
    """Cut after the headers, after the role chunk, in the middle; by reset or by a clean end."""
    assert Ending.INCOMPLETE is observe(*pieces).verdict(clean_end=clean_end).ending


def test_c05_a_finished_answer_without_done_is_complete_iff_the_end_is_clean() -> None:
    """Pinned: all choices finished and a clean end is an answer; a broken connection before [DONE] is a failure."""
    observer = observe(event(TOKEN), event(LAST))

    assert Ending.COMPLETE is observer.verdict(clean_end=True).ending
    assert Ending.INCOMPLETE is observer.verdict(clean_end=False).ending


def test_c07_done_alone_is_no_answer() -> None:
    """A worker that fails before its first token may still say [DONE]."""
    observer = observe(DONE)

    assert (True, Ending.INCOMPLETE) == (observer.done, observer.verdict().ending)


def test_nothing_after_done_is_looked_at() -> None:
    """Clients stop reading there, too."""
    observer = observe(event(LAST), DONE, event(TOKEN), event({"error": {"message": "x"}}))

    assert (0, None, 2) == (observer.token_events, observer.error, observer.events)


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2)])
def test_c55_all_choices_must_finish(order: tuple[int, ...]) -> None:
    """n=3, interleaved in any order; two of three are not enough even with [DONE]."""
    tokens = [event(chunk(index, content="a")) for index in order]
    ends = [event(chunk(index, finish="stop")) for index in order]

    assert Ending.COMPLETE is observe(*tokens, *ends, DONE, n=3).verdict().ending
    assert Ending.INCOMPLETE is observe(*tokens, *ends[:2], DONE, n=3).verdict().ending


@pytest.mark.parametrize(
    ("payload", "status", "code", "told"),
    [
        ({"error": {"message": "queue full", "type": "x", "code": 503}}, 503, "503", True),
        ({"error": {"message": "m", "type": "InternalServerError", "param": None, "code": 500}}, 500, "500", True),
        ({"error": {"message": "m", "type": "invalid_request_error", "code": "bad"}}, 400, "bad", True),
        ({"error": {"message": "m", "code": "429"}}, 429, "429", True),
        ({"error": {"message": "m"}, "choices": []}, 502, None, True),
        ({"error": "text"}, 502, None, False),
        ({"error": {}}, 502, None, False),
        ({"object": "error", "message": "m", "type": "BadRequestError", "code": 400}, 400, "400", False),
    ],
)
@pytest.mark.parametrize("compact", [True, False])
def test_c06_an_in_band_error_is_found_in_every_shape(
    payload: dict[str, object], status: int, code: str | None, told: bool, compact: bool
) -> None:
    """As first event or later; [DONE] after it makes nothing good again."""
    observer = observe(event(payload, compact=compact), DONE)
    late = observe(event(TOKEN), event(payload, name="error"), DONE)

    assert observer.error is not None
    assert (status, code, told) == (observer.error.status, observer.error.code, observer.error.told)
    assert observer.error.message
    assert Ending.ERROR is observer.verdict().ending
    assert observer.verdict().error is observer.error
    assert (Ending.ERROR, 1) == (late.verdict().ending, late.token_events)


def test_a_null_error_is_none() -> None:
    """Some servers put it in every chunk."""
    observer = observe(event(TOKEN | {"error": None}), event(LAST), DONE)

    assert (1, Ending.COMPLETE) == (observer.token_events, observer.verdict().ending)


def test_the_first_error_is_kept() -> None:
    """What follows is its consequence."""
    observer = observe(event({"error": {"message": "first"}}), event({"error": {"message": "second"}}))

    assert observer.error is not None
    assert "first" == observer.error.message
