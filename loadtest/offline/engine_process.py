"""An engine in a process of its own, asked through pipes; its log is a file."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

WORKER = Path(__file__).with_name("engine_worker.py")
LEAVE_S = 20.0
_LAST_LINES = 12

EngineName = Literal["transformers", "vllm"]


class EngineError(Exception):
    """An engine could not do what it was asked; the message has its own words and the end of its log."""


class EngineProcess:
    """
    One engine, from start to end of the context. All its processes are in one session, and none is left behind; where
    this process is killed, the end of its pipe ends the engine.
    """

    def __init__(self, python: Path, engine: EngineName, log: Path, environ: Mapping[str, str]) -> None:
        self.engine, self.log = engine, log
        self._command = [str(python), str(WORKER), engine]
        self._environ = environ

    def __enter__(self) -> EngineProcess:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        # vLLM leaves its sockets behind, three for every engine; in TMPDIR, which is not for us to empty.
        sockets = tempfile.TemporaryDirectory(prefix="vllm-", ignore_cleanup_errors=True)
        with self.log.open("wb") as log, contextlib.ExitStack() as stack:
            stack.enter_context(sockets)
            try:
                self._process = subprocess.Popen(
                    self._command,
                    env={"VLLM_RPC_BASE_PATH": sockets.name, **self._environ},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,
                )
            except OSError as error:
                raise EngineError(
                    f"expected the interpreter of an engine's environment, found {self._command[0]}: {error.strerror}: "
                    "build one with `make engine`, or set ENGINE_PYTHON"
                ) from error
            self._sockets = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            if kind is None:
                with contextlib.suppress(OSError):
                    process.stdin.write(b'{"do":"quit"}\n')
                    process.stdin.flush()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(LEAVE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.stdout.close()
            self._sockets.close()

    def load(self, model: str, dtype: str, device: str, options: Mapping[str, Any]) -> tuple[dict[str, Any], float]:
        """What was loaded, and how long that took."""
        value = self._ask({"do": "load", "model": model, "dtype": dtype, "device": device, "options": dict(options)})
        return value["answer"], value["took_s"]

    def tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of each text as the prompt of a chat."""
        ids: list[list[int]] = self._ask({"do": "tokenize", "texts": list(texts)})["answer"]
        return ids

    def generate(
        self, prompts: Sequence[Sequence[int]], output_tokens: int, batch: int
    ) -> tuple[float, list[list[int]]]:
        """
        Seconds it took, and the generated ids of each prompt.

        Raises:
            EngineError: the engine failed, or some answer has not exactly the tokens asked for.
        """
        asked = {"prompts": [list(p) for p in prompts], "output_tokens": output_tokens, "batch": batch}
        seconds, outputs = self._ask({"do": "generate", **asked})["answer"]
        lengths = {len(output) for output in outputs}
        if lengths != {output_tokens} or len(outputs) != len(prompts):
            raise EngineError(
                f"expected {len(prompts)} answers of {output_tokens} tokens each from {self.engine}, "
                f"found {len(outputs)} of {sorted(lengths)}"
            )
        return seconds, outputs

    def _ask(self, command: Mapping[str, Any]) -> dict[str, Any]:
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        # One that has ended already may have said why: its last words are read all the same.
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(json.dumps(command).encode() + b"\n")
            process.stdin.flush()
        line = process.stdout.readline()
        if not line:
            code = process.wait()
            raise EngineError(
                f"{self.engine} ended with {code} while it was asked to {self._said(command)}:\n{self._log_end()}"
            )
        value: dict[str, Any] = json.loads(line)
        if "error" in value:
            raise EngineError(f"{self.engine} could not {self._said(command)}: {value['error']}\n{self._log_end()}")
        return value

    @staticmethod
    def _said(command: Mapping[str, Any]) -> str:
        batch = f" in batches of {command['batch']}" if "batch" in command else ""
        return f"{command['do']}{batch}"

    def _log_end(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
        return "\n".join([*lines, f"(from {self.log})"])
