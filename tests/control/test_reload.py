"""Reloads over a fake fleet: what is done in which order, what is remembered, and what running workers keep."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import pytest

from gateway.config.settings import Launch, Settings, Watch
from gateway.control.operations import Progress
from gateway.control.reload import Reloader, ReloadRefused, settled
from gateway.errors import ConfigurationError
from gateway.workers.spec import WorkerSpec
from tests.control.fakes import settings, spec

pytestmark = pytest.mark.anyio


def revision(spec: WorkerSpec) -> str:
    return f"{spec.launch.max_model_len} {spec.cpus}"


def configured(length: int | None = None, **top: object) -> Settings:
    model: dict[str, object] = {"model": "some/model", "launch": {"max_model_len": length}}
    return settings(models={"m": model}, **top)


def workers(configured: Settings) -> tuple[WorkerSpec, ...]:
    return tuple(
        dataclasses.replace(spec(f"{name}-0", name), launch=model.launch, watch=configured.watch)
        for name, model in configured.models.items()
    )


class File:
    """A file that the test writes."""

    def __init__(self, content: Settings | ConfigurationError) -> None:
        self.content = content

    def read(self) -> Settings:
        if isinstance(self.content, ConfigurationError):
            raise self.content
        return self.content

    def prepare(self, settings: Settings) -> tuple[Settings, tuple[WorkerSpec, ...]]:
        return settings, workers(settings)


class FakeFleet:
    """Does what it is told, and remembers it; with `fails` no worker takes new options."""

    def __init__(self, start: Settings, *, fails: bool = False) -> None:
        self.settings = start
        self.specs: Sequence[WorkerSpec] = workers(start)
        self.done: list[str] = []
        self._fails = fails

    async def use(self, settings: Settings, workers: Sequence[WorkerSpec]) -> None:
        self.done.append("use")
        self.settings = settings

    async def roll(self, goal: Sequence[WorkerSpec], progress: Progress) -> None:
        self.done.append("roll")
        if not self._fails:
            self.specs = goal


def progress() -> Progress:
    return Progress(1, "reload", lambda name, line, failed: None)


async def apply(reloader: Reloader) -> Progress:
    said = progress()
    wanted, found = await reloader.compare()
    await reloader.job(wanted, found)(said)
    return said


async def test_limits_reach_gateway_processes_before_any_worker_is_touched() -> None:
    fleet, file = FakeFleet(configured()), File(configured(9, limits={"max_json_depth": 9}))
    reloader = Reloader(configured(), file, revision, fleet)
    await apply(reloader)

    assert ["use", "roll"] == fleet.done
    assert 9 == fleet.settings.limits.max_json_depth
    assert () == (await reloader.compare())[1]


async def test_launch_options_alone_replace_no_gateway_process() -> None:
    fleet = FakeFleet(configured())
    await apply(Reloader(configured(), File(configured(9)), revision, fleet))

    assert ["roll"] == fleet.done


async def test_what_was_not_applied_stays_a_difference() -> None:
    """The limit was applied, the launch option was not: only the latter is tried again."""
    fleet, file = FakeFleet(configured(), fails=True), File(configured(9, limits={"max_json_depth": 9}))
    reloader = Reloader(configured(), file, revision, fleet)
    said = await apply(reloader)
    (left,) = (await reloader.compare())[1]

    assert "models.m.launch.max_model_len" == left.key
    assert "not applied: the new options of m" == said.report().lines[-1]


async def test_without_a_file_there_is_nothing_to_reload() -> None:
    reloader = Reloader(configured(), None, revision, FakeFleet(configured()))
    with pytest.raises(ReloadRefused, match="gateway up -c FILE"):
        await reloader.compare()

    assert not reloader.possible


async def test_a_wrong_file_is_told_as_it_is() -> None:
    reloader = Reloader(configured(), File(ConfigurationError("no", key="models")), revision, FakeFleet(configured()))
    with pytest.raises(ConfigurationError, match="models: no"):
        await reloader.compare()


async def test_addresses_are_refused_before_anything_is_done() -> None:
    fleet = FakeFleet(configured())
    reloader = Reloader(configured(), File(configured(9, listen={"port": 9})), revision, fleet)
    wanted, found = await reloader.compare()
    with pytest.raises(ReloadRefused, match=r"listen\.port"):
        reloader.job(wanted, found)

    assert [] == fleet.done


def test_a_running_worker_keeps_its_cores_and_key_but_hears_of_the_watch() -> None:
    """Cores are shared out anew when a replica comes; that alone replaces nobody. A changed option does, and then with
    the new cores."""
    running = dataclasses.replace(spec(), cpus=(0,), api_key="old", launch=Launch(max_model_len=1))
    goal = dataclasses.replace(running, cpus=(0, 1), api_key="new", watch=Watch(hang_idle_s=9))
    changed = dataclasses.replace(goal, launch=Launch(max_model_len=2))
    (kept,), (replaced,) = settled([goal], [running], revision), settled([changed], [running], revision)

    assert ((0,), "old", 9) == (kept.cpus, kept.api_key, kept.watch.hang_idle_s)
    assert ((0, 1), "new") == (replaced.cpus, replaced.api_key)
