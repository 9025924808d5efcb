"""What a model's own files say before anything is started: its config.json and the size of its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
"""As vLLM looks for them: the first kind of which there is one is the one it loads."""


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """
    One model on this disk.

    `config` is its config.json. `weight_bytes` is the size of the weights as stored, None when there are none or not
    all of them.
    """

    folder: Path
    config: Mapping[str, Any]
    weight_bytes: int | None

    @property
    def text_config(self) -> Mapping[str, Any]:
        """The part about the language model; multimodal models have it apart."""
        for name in ("text_config", "llm_config", "language_config"):
            part = self.config.get(name)
            if isinstance(part, dict) and part.get("num_attention_heads") is not None:
                return part
        return self.config


def find_model_files(source: str, environ: Mapping[str, str], extra_args: Sequence[str] = ()) -> ModelFiles | None:
    """
    The model's files: in its folder, or in the hub's cache when it was downloaded before. None when neither is there.

    Blocks, but reads no more than one small file and the names of the others. A config.json that cannot be read counts
    as none: vLLM's own message about it will be better than a guess.

    Args:
        source: As given to vLLM: a folder, or a hub id.
        environ: Where the hub's cache is (HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME, HOME).
        extra_args: Of the launch; `--revision` chooses among downloaded versions.
    """
    folder = Path(source)
    if not folder.is_dir():
        cached = _cached(source, environ, _revision(extra_args))
        if cached is None:
            return None
        folder = cached
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None
    return ModelFiles(folder, config, _weight_bytes(folder)) if isinstance(config, dict) else None


def _cached(source: str, environ: Mapping[str, str], revision: str) -> Path | None:
    if source.count("/") > 1 or source.startswith(("/", ".", "~")):
        return None
    repository = _hub_cache(environ) / f"models--{source.replace('/', '--')}"
    snapshots = repository / "snapshots"
    try:
        commit = (repository / "refs" / revision).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        commit = revision
    folder = snapshots / commit
    return folder if folder.is_dir() else None


def _hub_cache(environ: Mapping[str, str]) -> Path:
    if cache := environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE"):
        return Path(cache).expanduser()
    if home := environ.get("HF_HOME"):
        return Path(home).expanduser() / "hub"
    caches = environ.get("XDG_CACHE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".cache")
    return Path(caches) / "huggingface" / "hub"


def _revision(extra_args: Sequence[str]) -> str:
    for position, argument in enumerate(extra_args):
        if argument.startswith("--revision="):
            return argument.partition("=")[2]
        if argument == "--revision" and position + 1 < len(extra_args):
            return extra_args[position + 1]
    return "main"


def _weight_bytes(folder: Path) -> int | None:
    try:
        indexed = _indexed(folder)
        if indexed is not None:
            return sum((folder / name).stat().st_size for name in indexed)
        for pattern in _WEIGHTS:
            # `original/` and `consolidated` copies are not loaded; the former lie deeper, the latter beside.
            files = [file for file in folder.glob(pattern) if not file.name.startswith("consolidated")]
            if files:
                return sum(file.stat().st_size for file in files)
    except OSError:
        return None  # a download that is not complete: links that lead nowhere
    return None


def _indexed(folder: Path) -> list[str] | None:
    """The weight files that the model's index names, each once."""
    try:
        index = json.loads((folder / "model.safetensors.index.json").read_bytes())
    except (OSError, ValueError):
        return None
    names = index.get("weight_map") if isinstance(index, dict) else None
    return sorted(set(names.values())) if isinstance(names, dict) else None
