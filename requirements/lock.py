"""
Regenerate every requirements lock: `make locks`. For maintainers; needs `uv` on PATH (or UV=) and the package index.

The engine locks are universal (one file for Python 3.11 to 3.14 and every platform) and hold names, versions and
hashes only, no addresses: pip finds the files wherever the machine's own configuration says.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "requirements" / "sources"
ENGINE_LOCKS = ROOT / "gateway" / "setup" / "locks"

# Never part of the CPU lock: torch comes as its CPU build, which has no GPU libraries below it.
NOT_ON_CPU = re.compile(r"(torch|torchvision|torchaudio|torchcodec|triton|cuda-[a-z-]+|nvidia-(?!ml-py)[a-z0-9-]+)==")


def compiled(*arguments: str) -> str:
    """Run `uv pip compile` and return the lock's text; ends the program when uv does not succeed."""
    uv = os.environ.get("UV", "uv")
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lock.txt"
        command = [uv, "pip", "compile", "--quiet", "--universal", "--python-version", "3.11", "--generate-hashes"]
        command += ["--no-annotate", "--no-header", "--no-emit-index-url", "--output-file", str(output), *arguments]
        try:
            subprocess.run(command, check=True, cwd=ROOT)
        except FileNotFoundError:
            sys.exit(f"no program {uv!r}: install uv (`pip install uv`) or set UV=/path/to/uv")
        except subprocess.CalledProcessError as error:
            sys.exit(error.returncode)
        return output.read_text(encoding="utf-8")


def without(lock: str, dropped: re.Pattern[str]) -> str:
    """The lock without the requirements whose first line matches; a requirement spans its indented hash lines."""
    kept: list[str] = []
    keep = True
    for line in lock.splitlines(keepends=True):
        if not line[0].isspace():
            keep = dropped.match(line) is None
        if keep:
            kept.append(line)
    return "".join(kept)


def light_environment() -> tuple[str, str]:
    """What serving and load tests need, and the same with what development and the tests need on top."""
    needed = ["pyproject.toml", str(SOURCES / "build.in"), "--extra", "loadtest", "--extra", "traces"]
    needed += ["--extra", "compiled"]
    light = compiled(*needed)
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write(light)
        constraints.flush()
        # One environment holds both: what is in both must be the same.
        return light, compiled(*needed, "--extra", "dev", "--constraints", constraints.name)


def main() -> None:
    """Write all locks, each whole or not at all."""
    ENGINE_LOCKS.mkdir(parents=True, exist_ok=True)
    cpu = compiled(str(SOURCES / "engine-cpu.in"), "--override", str(SOURCES / "engine-cpu.overrides"))
    light, tools = light_environment()
    locks = {
        ROOT / "requirements" / "lock.txt": light,
        ROOT / "requirements" / "tools.txt": tools,
        ROOT / "requirements" / "bench-peers.txt": compiled(str(SOURCES / "bench-peers.in")),
        ROOT / "requirements" / "sdk-clients.txt": compiled(str(SOURCES / "sdk-clients.in")),
        ENGINE_LOCKS / "cpu.txt": without(cpu, NOT_ON_CPU),
        ENGINE_LOCKS / "cuda13.txt": compiled(str(SOURCES / "engine-cuda13.in")),
        ENGINE_LOCKS / "cuda12.txt": compiled(str(SOURCES / "engine-cuda12.in")),
    }
    for path, text in locks.items():
        path.write_text(text, encoding="utf-8")
        requirements = sum("==" in line for line in text.splitlines())
        print(f"{path.relative_to(ROOT)}: {requirements} requirements")


if __name__ == "__main__":
    main()
