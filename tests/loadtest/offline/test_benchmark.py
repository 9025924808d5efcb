"""The course of the offline benchmark, with engines that only pretend, and its refusals."""

from __future__ import annotations

import ast
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
from rich.console import Console

from loadtest.offline.benchmark import BEST_BATCH, ONE_BY_ONE, VLLM, OfflinePlan, run_offline
from loadtest.offline.cli import build_parser, engine_environment, main, make_plan
from loadtest.offline.engine_process import WORKER, EngineError, EngineName, EngineProcess
from loadtest.offline.output import offline_json, print_offline
from tests.e2e.served import alive

PLAN = OfflinePlan("model", prompts=6, output_tokens=4, one_by_one=2, batches=(2, 4, 99), repeats=3)


class Pretended:
    """An engine that takes a second for a batch and answers by prompt; every call is written into `calls`."""

    def __init__(self, name: EngineName, calls: list[tuple[Any, ...]], *, dtype: str, out_of_memory_at: int) -> None:
        self.name, self.calls, self.dtype, self.limit = name, calls, dtype, out_of_memory_at

    def __enter__(self) -> Pretended:
        return self

    def __exit__(self, *error: Any) -> None:
        self.calls.append((self.name, "left"))

    def load(self, model: str, dtype: str, device: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        self.calls.append((self.name, "load", options.get("max_model_len")))
        loaded = {"version": "1", "torch": "2", "device": device, "dtype": self.dtype, "attention": "a", "threads": 2}
        return loaded, 9.0

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        return [list(range(1 + len(text) % 7)) for text in texts]

    def generate(
        self, prompts: Sequence[Sequence[int]], output_tokens: int, batch: int
    ) -> tuple[float, list[list[int]]]:
        self.calls.append((self.name, len(prompts), output_tokens, batch))
        if batch >= self.limit:
            raise EngineError("out of memory")
        passes = -(-len(prompts) // batch) if batch else 1
        return float(passes), [[len(p), *range(output_tokens - 1)] for p in prompts]


def pretended(calls: list[tuple[Any, ...]], *, vllm_dtype: str = "bfloat16", out_of_memory_at: int = 1000) -> Any:
    """Starts pretended engines."""

    def start(name: EngineName) -> Pretended:
        dtype = vllm_dtype if name == "vllm" else "bfloat16"
        return Pretended(name, calls, dtype=dtype, out_of_memory_at=out_of_memory_at)

    return start


def test_rounds_alternate() -> None:
    """Each mode comes first once, so that none always has the warmest machine; trials are not among them."""
    calls: list[tuple[Any, ...]] = []
    result = run_offline(PLAN, pretended(calls), lambda text: None)
    timed = calls[calls.index(("vllm", "load", 7 + PLAN.output_tokens)) + 2 :]
    passes = [c for c in timed if len(c) == 4]

    assert [("transformers", 2, 4, 1), ("transformers", 6, 4, 6), ("vllm", 6, 4, 0)] == passes[:3]
    assert passes[3:6] == passes[1:3] + passes[:1]
    assert passes[6:9] == passes[2:3] + passes[:2]
    assert {2: 8.0, 4: 16.0, 6: 24.0} == result.trials
    assert [3, 3, 3] == [len(mode.rounds) for mode in result.modes.values()]


def test_without_room_for_both_the_first_is_gone_before_the_second_is_loaded() -> None:
    """As on a GPU."""
    calls: list[tuple[Any, ...]] = []
    plan = OfflinePlan("model", prompts=6, output_tokens=4, one_by_one=2, batches=(2,), repeats=2, together=False)
    result = run_offline(plan, pretended(calls), lambda text: None)

    assert calls.index(("transformers", "left")) < calls.index(("vllm", "load", 11))
    assert [2, 2, 2] == [len(mode.rounds) for mode in result.modes.values()]


def test_figures_are_of_counted_tokens_and_real_prompts() -> None:
    """Padding is not counted, output and total are told apart, the ratio is by round."""
    result = run_offline(PLAN, pretended([]), lambda text: None)
    value = json.loads(json.dumps(offline_json(result)))
    one, best, vllm = (value["modes"][name] for name in (ONE_BY_ONE, BEST_BATCH, VLLM))
    prompt_tokens = value["prompts"]["tokens"]

    assert 4.0 == pytest.approx(one["output_tokens_per_s"]["mean"])
    assert 24.0 == pytest.approx(best["output_tokens_per_s"]["mean"]) == vllm["output_tokens_per_s"]["mean"]
    assert 24.0 + prompt_tokens == pytest.approx(vllm["total_tokens_per_s"]["mean"])
    assert (6, 6) == (best["batch"], best["prompts"])
    assert 6.0 == pytest.approx(one["vllm_times_this"]["mean"])
    assert 1.0 == value["greedy_agreement"]["vllm_and_transformers"]["identical"]
    assert 9.0 == value["engines"]["vllm"]["load_s"]


def test_the_table_says_what_was_compared() -> None:
    """Sizes, versions, intervals, agreement; and that two repeats are too few."""
    console = Console(file=StringIO(), width=140)
    plan = OfflinePlan("the-model", prompts=6, output_tokens=4, one_by_one=2, batches=(2,), repeats=2)
    print_offline(console, run_offline(plan, pretended([]), lambda text: None))
    text = console.file.getvalue()  # type: ignore[attr-defined]

    for part in ("the-model, bfloat16 on cpu: 6 prompts", "best batch of 2", "one by one (2 prompts)", "times this"):
        assert part in text
    assert "100% of the greedy answers are identical; 4.0 of 4 tokens agree" in text
    assert "fewer than 3 repeats" in text


def test_a_batch_that_does_not_fit_is_left_out() -> None:
    """The largest that worked counts; if none does, the benchmark says why."""
    result = run_offline(PLAN, pretended([], out_of_memory_at=4), lambda text: None)

    assert {2: 8.0, 4: None} == result.trials
    assert 2 == result.modes[BEST_BATCH].batch
    with pytest.raises(EngineError, match="out of memory"):
        run_offline(PLAN, pretended([], out_of_memory_at=2), lambda text: None)


def test_two_dtypes_are_not_compared() -> None:
    """Half the bytes would be half the work."""
    with pytest.raises(EngineError, match=r"expected one dtype for both engines, found .*float16"):
        run_offline(PLAN, pretended([], vllm_dtype="float16"), lambda text: None)


def test_the_sizes_fit_the_machine_unless_they_are_given() -> None:
    """A GPU gets more, compiles, and cannot hold both engines."""
    cpu = make_plan(build_parser().parse_args([]), "m", gpu=False)
    gpu = make_plan(build_parser().parse_args(["--prompts", "5", "--no-compile"]), "m", gpu=True)

    assert (24, True, True) == (cpu.prompts, cpu.together, cpu.vllm_options["enforce_eager"])
    assert (5, 128, False, True) == (gpu.prompts, gpu.output_tokens, gpu.together, gpu.vllm_options["enforce_eager"])


def test_engines_get_all_processors_and_nothing_that_misleads_them(tmp_path: Path) -> None:
    """Kubernetes sets VLLM_PORT to a URL; what the user set stays."""
    found = engine_environment({"VLLM_PORT": "tcp://1", "PATH": "/bin", "VLLM_CPU_KVCACHE_SPACE": "7"}, str(tmp_path))

    assert "VLLM_PORT" not in found
    assert ("/bin", "7", "1") == (found["PATH"], found["VLLM_CPU_KVCACHE_SPACE"], found["HF_HUB_OFFLINE"])
    assert str(found["VLLM_CPU_OMP_THREADS_BIND"].count(",") + 1) == found["OMP_NUM_THREADS"]
    assert "HF_HUB_OFFLINE" not in engine_environment({}, "someone/model")
    one = engine_environment({"OMP_NUM_THREADS": "8"}, "someone/model", threads=1)
    assert ("1", 0) == (one["OMP_NUM_THREADS"], one["VLLM_CPU_OMP_THREADS_BIND"].count(","))


def fake_python(folder: Path, script: str) -> Path:
    """An interpreter that runs this instead of the worker."""
    file = folder / "python"
    file.write_text(f"#!{sys.executable}\n{script}\n")
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    return file


def test_an_engine_that_fails_is_quoted_with_the_end_of_its_log(tmp_path: Path) -> None:
    """Its own words, what it was asked, and where the rest is."""
    script = "import sys; print('BOOM', file=sys.stderr); print('{\"error\": \"OSError: no weights\"}', flush=True)"
    with (
        pytest.raises(EngineError) as failed,
        EngineProcess(fake_python(tmp_path, script), "vllm", tmp_path / "vllm.log", {}) as engine,
    ):
        engine.load("m", "auto", "cpu", {})

    for part in ("vllm could not load: OSError: no weights", "BOOM", str(tmp_path / "vllm.log")):
        assert part in str(failed.value)


def test_the_last_words_of_an_engine_that_has_gone_are_read(tmp_path: Path) -> None:
    """It failed before it was asked anything: what it said is quoted, not only that it is gone."""
    script = 'print(\'{\\"error\\": \\"no such model\\"}\', flush=True)'
    with EngineProcess(fake_python(tmp_path, script), "vllm", tmp_path / "vllm.log", {}) as engine:
        engine._process.wait(20)
        with pytest.raises(EngineError, match="vllm could not load: no such model"):
            engine.load("m", "auto", "cpu", {})


def test_an_engines_sockets_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM makes them where it is told to, and leaves them; also where it does not come to its start."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    script = "import os, pathlib, sys; pathlib.Path(os.environ['VLLM_RPC_BASE_PATH'], 'socket').touch()\n"
    script += 'print(\'{"answer": [], "took_s": 1}\', flush=True); sys.stdin.read()'
    with EngineProcess(fake_python(tmp_path, script), "vllm", tmp_path / "log", {}) as engine:
        engine.tokenize([])
        assert 1 == len(list(temporary.rglob("socket")))
    with (
        pytest.raises(EngineError, match="expected the interpreter"),
        EngineProcess(tmp_path, "vllm", tmp_path / "l", {}),
    ):
        pass
    assert [] == list(temporary.iterdir())


def test_an_engine_that_dies_is_told_with_its_exit_code(tmp_path: Path) -> None:
    """Nothing hangs."""
    with (
        pytest.raises(EngineError, match="transformers ended with 7 while it was asked to tokenize"),
        EngineProcess(fake_python(tmp_path, "raise SystemExit(7)"), "transformers", tmp_path / "log", {}) as engine,
    ):
        engine.tokenize(["a"])


def test_an_answer_of_another_length_is_an_error(tmp_path: Path) -> None:
    """Equal work is the point: tokens are counted, not assumed."""
    script = 'print(\'{"answer": [1.0, [[1, 2]]], "took_s": 1}\', flush=True); import sys; sys.stdin.read()'
    with (
        pytest.raises(EngineError, match=r"expected 1 answers of 3 tokens each from vllm, found 1 of \[2\]"),
        EngineProcess(fake_python(tmp_path, script), "vllm", tmp_path / "log", {}) as engine,
    ):
        engine.generate([[1]], 3, 0)


def test_without_an_engine_it_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing given; an interpreter that is not there; one without torch."""
    nothing = main([], {})
    absent = main(["--engine-python", str(tmp_path / "none"), "--model", "m", "--results", str(tmp_path)], {})
    bare = fake_python(tmp_path, "import sys; sys.exit('ModuleNotFoundError: No module named torch')")
    without = main(["--engine-python", str(bare), "--model", "m", "--results", str(tmp_path)], {})
    error = capsys.readouterr().err

    assert (2, 3, 3) == (nothing, absent, without)
    assert "use `make offline-bench`" in error
    assert "build one with `make engine`" in error
    assert "expected torch in the environment of" in error


def test_the_worker_needs_nothing_of_this_project() -> None:
    """The engine's environment has no loadtest: only the standard library is imported by statement."""
    tree = ast.parse(WORKER.read_text())
    names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}

    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


@pytest.mark.integration
def test_a_terminated_benchmark_leaves_no_engine_behind(tmp_path: Path) -> None:
    """SIGTERM in the middle of a command that would take an hour."""
    engine = fake_python(tmp_path, "import os, time; open('pid', 'w').write(f'{os.getpid()}\\n'); time.sleep(3600)")
    command = [sys.executable, "-m", "loadtest.offline", "--engine-python", str(engine), "--model", "m"]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    process = subprocess.Popen([*command, "--device", "cpu"], cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL)
    pause, pid_file = threading.Event(), tmp_path / "pid"
    while not (pid_file.exists() and pid_file.read_text().endswith("\n")):
        assert process.poll() is None
        pause.wait(0.05)
    fake = psutil.Process(int(pid_file.read_text()))
    process.terminate()

    assert 130 == process.wait(60)
    assert [] == alive([fake])
