"""What differs between two configurations, and what each difference costs."""

from __future__ import annotations

import pytest

from gateway.config.settings import Settings
from gateway.control.changes import HIDDEN, Change, Effect, changes, for_gateway_processes, refusal

BASE: dict[str, object] = {
    "models": {
        "m": {"model": "a/m", "replicas": 2, "launch": {"env": {"TOKEN": "secret-one"}}},
        "s": {"workers": [{"url": "http://10.0.0.1:8000", "api_key": "secret-two"}]},
    },
    "engines": {"default": {}, "old": {"python": "/bin/sh"}},
}


def changed(**top: object) -> tuple[Change, ...]:
    return changes(Settings.model_validate(BASE), Settings.model_validate(BASE | top))


def models(**keys: object) -> dict[str, object]:
    """The models of BASE with other keys of `m`."""
    base = BASE["models"]
    assert isinstance(base, dict)
    return {**base, "m": {**base["m"], **keys}}


def test_equal_meaning_is_no_difference() -> None:
    """A default that is written out says nothing new."""
    assert () == changed(drain_timeout_s=25, listen={"host": "127.0.0.1"})


@pytest.mark.parametrize(
    ("top", "key", "effect"),
    [
        ({"listen": {"port": 9}}, "listen.port", Effect.REFUSED),
        ({"admin": {"host": "0.0.0.0"}}, "admin.host", Effect.REFUSED),
        ({"models": models(launch={"max_model_len": 9, "env": {"TOKEN": "secret-one"}})},
         "models.m.launch.max_model_len", Effect.ROLLED),
        ({"models": models(engine="old")}, "models.m.engine", Effect.ROLLED),
        ({"models": models(model="b/m")}, "models.m.model", Effect.ROLLED),
        ({"engines": {"default": {}, "old": {"python": "/bin/true"}}}, "engines.old.python", Effect.ROLLED),
        ({"models": models(replicas=3)}, "models.m.replicas", Effect.COUNT),
        ({"models": models(timeouts={"idle_s": 9})}, "models.m.timeouts.idle_s", Effect.GATEWAY),
        ({"models": models(aliases=["x"])}, "models.m.aliases", Effect.GATEWAY),
        ({"models": models(retries=0)}, "models.m.retries", Effect.GATEWAY),
        ({"limits": {"max_json_depth": 9}}, "limits.max_json_depth", Effect.GATEWAY),
        ({"drain_timeout_s": 9}, "drain_timeout_s", Effect.GATEWAY),
        ({"watch": {"hang_idle_s": 9}}, "watch.hang_idle_s", Effect.NEXT_START),
    ],
)  # fmt: skip
def test_each_key_has_its_cost(top: dict[str, object], key: str, effect: Effect) -> None:
    (found,) = changed(**top)

    assert (key, effect) == (found.key, found.effect)
    assert found.before != found.after
    assert bool(refusal((found,))) is (effect is Effect.REFUSED)
    assert for_gateway_processes((found,)) is (effect not in (Effect.ROLLED, Effect.NEXT_START))


def test_models_that_come_and_go_are_one_line_each() -> None:
    base = BASE["models"]
    assert isinstance(base, dict)
    came, went = changed(models={"m": base["m"], "n": {"model": "c/n"}})

    assert ("models.s", Effect.REMOVED) == (came.key, came.effect) or ("models.s", Effect.REMOVED) == (
        went.key,
        went.effect,
    )
    assert {"models.n", "models.s"} == {came.key, went.key}
    assert {"c/n x 1", ""} == {change.after for change in (came, went)}


def test_secrets_are_not_shown() -> None:
    """Neither a worker's environment nor a static worker's key; that they changed is."""
    static = {"workers": [{"url": "http://10.0.0.1:8000", "api_key": "secret-three"}]}
    found = changed(models={**models(launch={"env": {"TOKEN": "secret-four"}}), "s": static})

    assert ["models.m.launch.env.TOKEN", "models.s.workers.0.api_key"] == [change.key for change in found]
    assert {HIDDEN} == {value for change in found for value in (change.before, change.after)}
    assert "secret" not in repr(found)


def test_a_refusal_names_the_keys_and_what_to_do() -> None:
    sentence = refusal(changed(listen={"port": 9}, limits={"max_json_depth": 9}))

    assert "listen.port" in sentence
    assert "limits" not in sentence
    assert "Nothing was applied" in sentence
