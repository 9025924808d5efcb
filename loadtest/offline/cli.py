"""
The offline benchmark's command line: `python -m loadtest.offline --engine-python PATH --model FOLDER`.

Exit codes: 0 done; 2 bad usage, or a result that cannot be stored; 3 no engine, or it failed; 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from loadtest.offline.benchmark import OfflinePlan, run_offline
from loadtest.offline.engine_process import EngineError, EngineName, EngineProcess
from loadtest.offline.output import offline_json, print_offline

_KV_CACHE_GIB = "1"
_THREADS = ("OMP_NUM_THREADS", "VLLM_CPU_OMP_THREADS_BIND")
_DROPPED = ("VLLM_PORT", "RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "LOCAL_RANK")
"""Variables of other programs (Kubernetes, torchrun) that vLLM would take for its own."""


def build_parser() -> argparse.ArgumentParser:
    """The argument parser; where there is a GPU, sizes default to more."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtest.offline", description="transformers against vLLM at the same offline work."
    )
    parser.add_argument(
        "--engine", metavar="JSON", help='{"python": ..., "model": ...}, as gateway.setup.prepare prints'
    )
    parser.add_argument("--engine-python", type=Path, metavar="FILE", help="interpreter with vLLM and transformers")
    parser.add_argument("--model", help="hub id or folder")
    parser.add_argument("--dtype", default="auto", help="for both: auto (the model's own), bfloat16, float16, float32")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto", help="default: what there is")
    parser.add_argument("--prompts", type=_positive, help="default: 24; on a GPU 256")
    parser.add_argument("--output-tokens", type=_positive, help="per answer, default: 32; on a GPU 128")
    parser.add_argument("--one-by-one", type=_positive, help="prompts of the unbatched mode, default: 3; on a GPU 16")
    parser.add_argument("--batches", type=_batches, help="sizes to try, default: 8,24; on a GPU 16,64,256")
    parser.add_argument("--repeats", type=_positive, default=3, help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts, default: %(default)s")
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="vLLM's compilation; default: on a GPU only"
    )
    parser.add_argument("--threads", type=_positive, help="of each engine on a CPU; default: one for every processor")
    parser.add_argument("--results", default="results", metavar="DIR", help="folder of results, default: %(default)s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result there too")
    return parser


def main(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Parses, runs, shows, stores; returns the exit code."""
    options = build_parser().parse_args(argv)
    given = json.loads(options.engine) if options.engine else {}
    python = options.engine_python or (Path(given["python"]) if "python" in given else None)
    model = options.model or given.get("model")
    if python is None or model is None:
        print("offline: expected --engine-python and --model, found none: use `make offline-bench`", file=sys.stderr)
        return 2
    console = Console()
    if not console.is_terminal:
        console.width = 120
    folder = Path(options.results) / f"offline-{time.strftime('%Y%m%d-%H%M%S')}"
    environment = engine_environment(environ, model, options.threads)
    began = time.monotonic()

    def progress(text: str) -> None:
        console.print(f"{time.monotonic() - began:6.1f} s  {text}", style="dim", highlight=False, markup=False)

    def start(engine: EngineName) -> EngineProcess:
        return EngineProcess(python, engine, folder / f"{engine}.log", environment)

    try:
        device = options.device if options.device != "auto" else find_device(python, environment)
        result = run_offline(make_plan(options, model, gpu=device == "cuda"), start, progress)
    except EngineError as error:
        print(f"offline: {error}", file=sys.stderr)
        return 3
    except KeyboardInterrupt:
        return 130
    print_offline(console, result)
    text = json.dumps({**offline_json(result), "took_s": time.monotonic() - began}, indent=1) + "\n"
    try:
        for file in filter(None, (folder / "result.json", options.json)):
            file.write_text(text)
    except OSError as error:
        print(f"offline: the result cannot be stored: {error}: set --results or --json", file=sys.stderr)
        return 2
    console.print(f"result: {folder}", highlight=False)
    return 0


def make_plan(options: argparse.Namespace, model: str, *, gpu: bool) -> OfflinePlan:
    """The sizes: what was asked for, else what takes a few minutes on that kind of machine."""
    usual: dict[str, Any] = {"prompts": 24, "output_tokens": 32, "one_by_one": 3, "batches": (8, 24)}
    if gpu:
        usual = {"prompts": 256, "output_tokens": 128, "one_by_one": 16, "batches": (16, 64, 256)}
    sizes = {name: getattr(options, name) or value for name, value in usual.items()}
    compiled = gpu if options.compile is None else options.compile
    return OfflinePlan(
        model=model,
        dtype=options.dtype,
        device="cuda" if gpu else "cpu",
        repeats=options.repeats,
        seed=options.seed,
        together=not gpu,
        vllm_options={"enforce_eager": not compiled},
        **sizes,
    )


def find_device(python: Path, environ: Mapping[str, str]) -> str:
    """
    cuda or cpu, as the engine's torch sees it.

    Raises:
        EngineError: the interpreter cannot be run, or has no torch.
    """
    ask = "import torch; print('cuda' if torch.cuda.is_available() else 'cpu')"
    try:
        done = subprocess.run([str(python), "-c", ask], env=dict(environ), capture_output=True, text=True, check=False)
    except OSError as error:
        raise EngineError(
            f"expected the interpreter of an engine's environment, found {python}: {error.strerror}: build one with "
            "`make engine`, or set ENGINE_PYTHON"
        ) from error
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise EngineError(f"expected torch in the environment of {python}, found {last}")
    return done.stdout.strip()


def engine_environment(environ: Mapping[str, str], model: str, threads: int | None = None) -> dict[str, str]:
    """
    What an engine process gets: this process's environment, less what would mislead vLLM, and as many processors for
    both, by default all.
    """
    processors = _processors()[:threads]
    environment = {name: value for name, value in environ.items() if name not in _DROPPED}
    defaults = {
        "PYTHONUNBUFFERED": "1",
        "PYTHONHASHSEED": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": _KV_CACHE_GIB,
        # vLLM's own binding keeps a processor for the server, which there is none of here: both engines get the same.
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, processors)),
        "OMP_NUM_THREADS": str(len(processors)),
    }
    if Path(model).is_dir():
        defaults["HF_HUB_OFFLINE"] = "1"
    if threads is not None:
        environment = {name: value for name, value in environment.items() if name not in _THREADS}
    return {**defaults, **environment}


def _processors() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 up, found {text!r}")
    return int(text)


def _batches(text: str) -> tuple[int, ...]:
    return tuple(_positive(part) for part in text.split(","))
