"""The benchmark's table and its JSON."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.offline.benchmark import BEST_BATCH, ONE_BY_ONE, VLLM, Mode, OfflineResult
from loadtest.offline.figures import Agreement, mean_interval, ratio_interval

BUSY = 0.1
"""Share of all processors' time that other programs may take before figures of a CPU mean nothing."""


def print_offline(console: Console, result: OfflineResult) -> None:
    """One row for each mode; what it is worth below."""
    plan = result.plan
    loaded, lengths = result.loaded["vllm"], result.prompt_lengths
    console.print(
        f"{plan.model}, {loaded['dtype']} on {loaded['device']}: {plan.prompts} prompts of {lengths[0]} to "
        f"{lengths[-1]} tokens (mean {sum(lengths) / len(lengths):.0f}), {plan.output_tokens} output tokens each, "
        f"greedy, {plan.repeats} repeats",
        highlight=False,
    )
    table = Table()
    table.add_column("")
    for heading in ("output tokens/s (95 %)", "total tokens/s", "seconds", "vLLM's output rate is"):
        table.add_column(heading, justify="right")
    for mode in result.modes.values():
        table.add_row(*_row(result, mode))
    console.print(table)
    for name, version in _versions(result):
        console.print(f"  {name} {version}", style="dim", highlight=False)
    console.print(_agreed("vLLM and transformers", result.engines_agree), highlight=False)
    console.print(_agreed("transformers, one by one and in batches", result.batches_agree), highlight=False)
    busiest = max((one.others_share or 0.0 for mode in result.modes.values() for one in mode.rounds), default=0.0)
    if busiest > BUSY:
        console.print(
            f"NOT TO BE QUOTED: other programs took up to {busiest:.0%} of this machine's processors during a pass",
            style="bold red",
            highlight=False,
        )
    if plan.repeats < 3:
        console.print("~ fewer than 3 repeats: not to be quoted", style="dim")


def offline_json(result: OfflineResult) -> dict[str, Any]:
    """Everything, passes included."""
    return {
        "plan": asdict(result.plan),
        "engines": {name: {**result.loaded[name], "load_s": result.load_s[name]} for name in result.loaded},
        "prompts": {
            "count": len(result.prompt_lengths),
            "tokens": sum(result.prompt_lengths),
            "shortest": result.prompt_lengths[0],
            "longest": result.prompt_lengths[-1],
            "digest": result.prompts_digest,
        },
        "batch_trials_output_tokens_per_s": {str(batch): rate for batch, rate in result.trials.items()},
        "modes": {name: _mode_json(result, mode) for name, mode in result.modes.items()},
        "greedy_agreement": {
            "vllm_and_transformers": result.engines_agree.to_json(),
            "transformers_one_by_one_and_batched": result.batches_agree.to_json(),
        },
    }


def _row(result: OfflineResult, mode: Mode) -> tuple[str, str, str, str, str]:
    label = f"{mode.name} of {mode.batch}" if mode.name == BEST_BATCH else mode.name
    if mode.name == ONE_BY_ONE and len(mode.prompts) < result.plan.prompts:
        label += f" ({len(mode.prompts)} prompts)"
    rates = mean_interval(_rates(mode))
    total = mean_interval([r.total_tokens_per_s for r in mode.rounds])
    seconds = mean_interval([r.seconds for r in mode.rounds])
    times = "" if mode.name == VLLM else f"{ratio_interval(_rates(result.modes[VLLM]), _rates(mode))} times this"
    return label, str(rates), f"{total.mean:.3g}", f"{seconds.mean:.3g}", times


def _mode_json(result: OfflineResult, mode: Mode) -> dict[str, Any]:
    return {
        "batch": mode.batch or None,
        "prompts": len(mode.prompts),
        "passes": [asdict(one) for one in mode.rounds],
        "output_tokens_per_s": asdict(mean_interval(_rates(mode))),
        "total_tokens_per_s": asdict(mean_interval([r.total_tokens_per_s for r in mode.rounds])),
        "vllm_times_this": asdict(ratio_interval(_rates(result.modes[VLLM]), _rates(mode))),
    }


def _rates(mode: Mode) -> list[float]:
    return [one.output_tokens_per_s for one in mode.rounds]


def _versions(result: OfflineResult) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for name, loaded in result.loaded.items():
        threads = f", {loaded['threads']} threads" if loaded["threads"] else ""
        version = f"{loaded['version']} (torch {loaded['torch']}, attention: {loaded['attention']}{threads})"
        found.append((name, f"{version}, loaded in {result.load_s[name]:.0f} s, which is not in the figures"))
    return found


def _agreed(who: str, found: Agreement) -> str:
    return (
        f"{who}: {found.identical:.0%} of the greedy answers are identical; "
        f"{found.agreed_tokens:.1f} of {found.of_tokens} tokens agree before the first difference"
    )
