"""
One builder of the set-up as a program that can be killed: `python builders.py WHAT FOLDER FAKE_PYTHON`.

Prints each progress line as it comes and, at the end, what it built. Also the names of what the three build, so that
the tests can ask whether it is finished.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from gateway.setup.builds import CPU
from gateway.setup.completion import finished
from gateway.setup.engine import EngineRequest, built_engine, ensure_engine
from gateway.setup.facts import gather_facts
from gateway.setup.light import ensure_light, light_key
from gateway.setup.model import built_default_model, ensure_default_model
from gateway.setup.progress import SetupProgress

Hold = Callable[[Path], None]


def show(progress: SetupProgress) -> None:
    """A line for the test that reads us."""
    print(progress.step, progress.detail, flush=True)


def build_light(folder: Path, fake_python: str) -> Path:
    """`.venv` in a checkout of two files."""
    (folder / "requirements").mkdir(exist_ok=True)
    (folder / "requirements" / "lock.txt").write_text("first==1.0\n", encoding="utf-8")
    (folder / "pyproject.toml").write_text("[project]\nname='x'\n", encoding="utf-8")
    return ensure_light(folder, fake_python, os.environ, show)


def light_finished(folder: Path) -> bool:
    """Whether it counts as finished."""
    version = (sys.version_info.major, sys.version_info.minor, sys.version_info.micro)
    return (folder / "pyproject.toml").exists() and finished(folder / ".venv", light_key(folder, version)) is not None


def nobody(path: Path) -> None:
    """Holds nothing."""


def build_engine(folder: Path, fake_python: str, hold: Hold = nobody) -> Path:
    """The CPU engine's environment."""
    facts, request = gather_facts({}, cache=folder, ports=()), EngineRequest(variant="cpu")
    return ensure_engine(request, folder, facts, show, os.environ, base_python=fake_python, hold=hold).python


def engine_finished(folder: Path) -> bool:
    """Whether it counts as finished."""
    return built_engine(CPU, folder) is not None


def build_model(folder: Path, fake_python: str, hold: Hold = nobody) -> Path:
    """The embedded model."""
    return ensure_default_model(Path(fake_python), folder, show, os.environ, pip_python=fake_python, hold=hold)


def model_finished(folder: Path) -> bool:
    """Whether it counts as finished."""
    return built_default_model(folder) is not None


BUILD: dict[str, Callable[..., Path]] = {"light": build_light, "engine": build_engine, "model": build_model}
FINISHED: dict[str, Callable[[Path], bool]] = {
    "light": light_finished,
    "engine": engine_finished,
    "model": model_finished,
}

if __name__ == "__main__":
    # Whoever runs the tests in the background or under nohup ignores these, and passes that on to us.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    print("built", BUILD[sys.argv[1]](Path(sys.argv[2]), sys.argv[3]), flush=True)
