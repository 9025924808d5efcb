"""
One engine behind pipes, run by path with the interpreter of the engine's environment: `engine_worker.py ENGINE`.

Reads one JSON command a line from standard input and answers with one JSON line on what was standard output when it
began; whatever the engines print goes to standard error. Needs the standard library and the engine, and nothing else
of this project.
"""

import importlib
import importlib.metadata
import json
import os
import sys
import time
from typing import Any

# Not by an import statement: this file is part of a package that must never load an engine.
_import: Any = importlib.import_module


class Transformers:
    """`generate()` of transformers on static batches, padded on the left."""

    def load(self, model: str, dtype: str, device: str, options: dict[str, Any]) -> dict[str, Any]:
        """Loads the weights; attention is what transformers chooses."""
        self._torch = _import("torch")
        transformers = _import("transformers")
        transformers.utils.logging.set_verbosity_error()
        transformers.utils.logging.disable_progress_bar()
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(model)
        kind = dtype if dtype == "auto" else getattr(self._torch, dtype)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=kind)
        self._model = loaded.to(device).eval()
        self._device = device
        # The end of a sequence must not end it: vLLM's ignore_eos does not forbid the token either.
        self._model.generation_config.eos_token_id = None
        pad = self._tokenizer.pad_token_id
        self._pad = 0 if pad is None else pad
        return {
            "version": transformers.__version__,
            "torch": self._torch.__version__,
            "device": device,
            "dtype": str(self._model.dtype).removeprefix("torch."),
            "attention": self._model.config._attn_implementation,
            "threads": self._torch.get_num_threads(),
        }

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        """Through the chat template where the model has one."""
        tokenizer = self._tokenizer
        if tokenizer.chat_template is None:
            return [list(tokenizer(text)["input_ids"]) for text in texts]
        chats = [[{"role": "user", "content": text}] for text in texts]
        rendered = [tokenizer.apply_chat_template(c, tokenize=False, add_generation_prompt=True) for c in chats]
        return [list(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in rendered]

    def generate(self, prompts: list[list[int]], output_tokens: int, batch: int) -> tuple[float, list[list[int]]]:
        """Seconds and tokens; batches one after another in the given order."""
        outputs: list[list[int]] = []
        self._synchronize()
        began = time.perf_counter()
        for start in range(0, len(prompts), batch):
            outputs += self._batch(prompts[start : start + batch], output_tokens)
        self._synchronize()
        return time.perf_counter() - began, outputs

    def _batch(self, prompts: list[list[int]], output_tokens: int) -> list[list[int]]:
        torch = self._torch
        width = max(map(len, prompts))
        ids = torch.tensor([[self._pad] * (width - len(p)) + p for p in prompts], device=self._device)
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts], device=self._device)
        with torch.inference_mode():
            found = self._model.generate(
                ids,
                attention_mask=mask,
                max_new_tokens=output_tokens,
                do_sample=False,
                pad_token_id=self._pad,
            )
        rows: list[list[int]] = found[:, width:].tolist()
        return rows

    def _synchronize(self) -> None:
        if self._device == "cuda":
            self._torch.cuda.synchronize()


class Vllm:
    """vLLM's `LLM` with all prompts at once; the prefix cache is off, since every repeat asks the same."""

    def load(self, model: str, dtype: str, device: str, options: dict[str, Any]) -> dict[str, Any]:
        """Loads and compiles; `options` go to vLLM as they are."""
        vllm = _import("vllm")
        self._vllm = vllm
        self._llm = vllm.LLM(
            model=model, dtype=dtype, enable_prefix_caching=False, disable_log_stats=True, seed=0, **options
        )
        config = self._llm.llm_engine.vllm_config
        return {
            "version": vllm.__version__,
            "torch": importlib.metadata.version("torch"),
            "device": str(_import("vllm.platforms").current_platform.device_type),
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            "attention": "vLLM's own",
            "threads": None,
        }

    def tokenize(self, texts: list[str]) -> list[list[int]]:
        """Not asked of this engine: both get the same ids."""
        raise NotImplementedError

    def generate(self, prompts: list[list[int]], output_tokens: int, batch: int) -> tuple[float, list[list[int]]]:
        """Seconds and tokens. `batch` is 1 for one after another, else the engine batches as it sees fit."""
        chosen = self._vllm.SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True, detokenize=False)
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        groups = [[one] for one in asked] if batch == 1 else [asked]
        began = time.perf_counter()
        answers = [a for group in groups for a in self._llm.generate(group, chosen, use_tqdm=False)]
        return time.perf_counter() - began, [list(answer.outputs[0].token_ids) for answer in answers]


def main(engine: str) -> None:
    """Commands until `quit` or the end of input."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    worker: Any = {"transformers": Transformers, "vllm": Vllm}[engine]()
    for line in sys.stdin:
        command = json.loads(line)
        what = command.pop("do")
        if what == "quit":
            break
        began = time.perf_counter()
        try:
            answer = {"answer": getattr(worker, what)(**command)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps({**answer, "took_s": time.perf_counter() - began}), file=replies, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
