"""A model's files, in a folder or in the hub's cache."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.workers.model_files import find_model_files
from gateway.workers.sizes import parsed_bytes

CONFIG = {"num_attention_heads": 9}


def model(folder: Path, **files: int) -> Path:
    """A model's folder with files of so many bytes; double underscores stand for dots."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, size in files.items():
        (folder / name.replace("__", ".")).write_bytes(b"0" * size)
    return folder


def size(folder: Path) -> int | None:
    found = find_model_files(str(folder), {})
    assert found is not None
    return found.weight_bytes


def test_a_folder_is_read(tmp_path: Path) -> None:
    """Its configuration, and the sum of its weights."""
    found = find_model_files(str(model(tmp_path / "m", a__safetensors=70, b__safetensors=30)), {})
    assert found is not None
    assert (CONFIG, 100) == (found.config, found.weight_bytes)


def test_only_what_is_loaded_counts(tmp_path: Path) -> None:
    """Safetensors before other forms; files beside the index do not count, nor do consolidated copies."""
    assert 7 == size(model(tmp_path / "both", a__safetensors=7, a__bin=900))
    assert 9 == size(model(tmp_path / "old", pytorch_model__bin=9))
    assert 7 == size(model(tmp_path / "copy", a__safetensors=7, consolidated__safetensors=900))
    folder = model(tmp_path / "indexed", a__safetensors=7, b__safetensors=5, left_over__safetensors=900)
    index = {"weight_map": {"x": "a.safetensors", "y": "b.safetensors", "z": "a.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert 12 == size(folder)


def test_an_incomplete_download_has_no_size(tmp_path: Path) -> None:
    """A file of the index is missing, or all are."""
    folder = model(tmp_path / "m", a__safetensors=7)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    assert None is size(folder)
    assert None is size(model(tmp_path / "none"))


@pytest.mark.parametrize("text", ["{not json", "[1]"])
def test_a_broken_configuration_counts_as_none(tmp_path: Path, text: str) -> None:
    """vLLM's own message is better than a guess."""
    folder = model(tmp_path / "m")
    (folder / "config.json").write_text(text)
    assert None is find_model_files(str(folder), {})


def cached(cache: Path, commit: str = "c0ffee", **refs: str) -> Path:
    repository = cache / "models--org--name"
    (repository / "refs").mkdir(parents=True, exist_ok=True)
    for ref, target in {"main": commit, **refs}.items():
        (repository / "refs" / ref).write_text(target)
    return model(repository / "snapshots" / commit, a__safetensors=7)


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({"HF_HUB_CACHE": "{}/x"}, "x"),
        ({"HF_HOME": "{}/hf", "HOME": "/nowhere"}, "hf/hub"),
        ({"XDG_CACHE_HOME": "{}/cache"}, "cache/huggingface/hub"),
        ({"HOME": "{}/home"}, "home/.cache/huggingface/hub"),
    ],
)
def test_the_hubs_cache_is_looked_into(tmp_path: Path, environ: dict[str, str], place: str) -> None:
    """Where the hub's own library keeps it."""
    folder = cached(tmp_path / place)
    found = find_model_files("org/name", {name: value.format(tmp_path) for name, value in environ.items()})
    assert found is not None
    assert (folder, 7) == (found.folder, found.weight_bytes)
    assert None is find_model_files("org/other", {name: value.format(tmp_path) for name, value in environ.items()})


def test_the_revision_that_was_asked_for_is_read(tmp_path: Path) -> None:
    """A branch by name, or a commit."""
    environ = {"HF_HUB_CACHE": str(tmp_path)}
    cached(tmp_path)
    other = cached(tmp_path, "0ddba11", main="c0ffee", v2="0ddba11")
    for extra in (["--revision", "v2"], ["--revision=v2"], ["--revision", "0ddba11"]):
        found = find_model_files("org/name", environ, extra)
        assert found is not None
        assert other == found.folder


def test_a_path_is_no_hub_id(tmp_path: Path) -> None:
    """Even if something of the same form were in the cache."""
    assert None is find_model_files("/models/none", {"HF_HUB_CACHE": str(tmp_path)})


@pytest.mark.parametrize(
    ("text", "expected"), [(5, 5), ("512", 512), ("2G", 2 * 2**30), ("512M", 512 * 2**20), ("1.5g", 1_500_000_000)]
)
def test_sizes_are_read_as_vllm_reads_them(text: int | str, expected: int) -> None:
    """Capital letters are binary."""
    assert expected == parsed_bytes(text)


@pytest.mark.parametrize("text", ["2GB", "1.5G", "", "-1", "1.5", "G"])
def test_what_vllm_refuses_is_refused(text: str) -> None:
    """In words."""
    with pytest.raises(ValueError, match="expected a size"):
        parsed_bytes(text)
