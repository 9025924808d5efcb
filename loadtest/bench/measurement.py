"""
Is the load generator right? Its figures against what the golden server says it really sent, at 70 % of its own ceiling.

An error is the moment at which the client says it got a token minus the moment at which the server had written it, both
on the machine's monotonic clock; for a gap the difference of the two gaps. A second client, which shares no code with
the first, measures a few streams of the same server at the same time. Then two load processes are compared with one by
processor time per event. Exit code 1 when a bar is missed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from loadtest.health import COMFORTABLE_SHARE, quantile
from loadtest.ledger import RequestRecord
from loadtest.report.folder import read_result
from loadtest.result import RunResult

GAP_MS, TTFT_MS, TOKENS = 20.0, 100.0, 150
STREAM_S = (TTFT_MS + GAP_MS * (TOKENS - 1)) / 1000
RAW_STREAMS = 20
ATTEMPTS = 3
ERROR_P50_S, ERROR_P99_S = 0.001, 0.003
LEAST_CEILING = 8_000.0
MOST_CPU_RATIO = 1.1
LIGHT_EVENTS_PER_S = 4_000.0
"""Per process, where processor time is compared: far from any limit."""


@dataclass(frozen=True, slots=True)
class Errors:
    """Absolute errors in seconds."""

    samples: int
    p50: float
    p99: float
    largest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Errors:
        """Of signed errors."""
        ordered = sorted(map(abs, values))
        p50, p99 = quantile(ordered, 0.5), quantile(ordered, 0.99)
        if p50 is None or p99 is None:
            raise SystemExit("expected streams to compare with the golden server's log, found none")
        return cls(len(ordered), p50, p99, ordered[-1])

    def __str__(self) -> str:
        return f"p50 {self.p50 * 1e3:.3f} ms, p99 {self.p99 * 1e3:.3f} ms, largest {self.largest * 1e3:.3f} ms"


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Of one client at one load."""

    client: str
    ttft: Errors
    gap: Errors

    @property
    def good(self) -> bool:
        """Whether both are within their bars."""
        return all(one.p50 <= ERROR_P50_S and one.p99 <= ERROR_P99_S for one in (self.ttft, self.gap))


Times = dict[str, Sequence[float]]
"""Moments of tokens by request id."""


def compare(client: str, received: Times, sent: Times) -> Accuracy:
    """
    The errors of all streams in `received`.

    Raises:
        SystemExit: a stream has another number of tokens than the server sent.
    """
    ttft: list[float] = []
    gaps: list[float] = []
    for name, got in received.items():
        truth = sent[name]
        if len(got) != len(truth):
            raise SystemExit(f"{client}: expected {len(truth)} tokens in {name}, as the server sent, found {len(got)}")
        ttft.append(got[0] - truth[0])
        late = [a - b for a, b in zip(got, truth, strict=True)]
        gaps.extend(b - a for a, b in pairwise(late))
    return Accuracy(client, Errors.of(ttft), Errors.of(gaps))


@contextmanager
def golden_process() -> Iterator[int]:
    """A golden server; yields its port."""
    flags = ("--ttft-ms", str(TTFT_MS), "--gap-ms", str(GAP_MS), "--tokens", str(TOKENS))
    command = [sys.executable, "-m", "loadtest.servers.golden_server", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield int(server.stdout.readline().rsplit(":", 1)[1])
        finally:
            server.terminate()


def run_loadtest(port: int, rate: float, seconds: float, *, processes: int = 1, calibrate: str = "never") -> RunResult:
    """One run of the load generator as people run it; its figures come from the files it wrote."""
    with tempfile.TemporaryDirectory() as folder:
        command = (
            *(sys.executable, "-m", "loadtest", "chat", "--target", f"http://127.0.0.1:{port}", "--results", folder),
            *("--rate", f"{rate:.3f}", "--arrivals", "constant", "--duration", f"{seconds:g}s", "--warmup", "0"),
            *("--max-in-flight", "20000", "--assume-lengths", "--option", "prompt_tokens=16"),
            *("--processes", str(processes), "--calibrate", calibrate),
        )
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        folders = [path for path in Path(folder).iterdir() if path.is_dir()]
        if done.returncode not in (0, 4) or not folders:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}")
        return read_result(folders[0])


def sessions_per_s(events_per_s: float) -> float:
    """The rate of arrivals that makes so many token events."""
    return events_per_s / TOKENS


def loaded_times(result: RunResult, seconds: float) -> Times:
    """Streams that lay wholly in the part of the run in which as many streams ran as in the end."""
    start = result.settings["clock_start_s"]

    def whole(record: RequestRecord) -> bool:
        return record.scheduled_s >= STREAM_S and record.ended_s <= seconds and record.token_events == TOKENS

    return {r.request_id: [start + at for at in r.token_times_s()] for r in result.ledger.records if whole(r)}


def accuracy_at(events_per_s: float, seconds: float) -> tuple[list[Accuracy], RunResult]:
    """Both clients against the golden server's log, the second one with a few streams in the middle of the load."""
    with golden_process() as port, contextlib.ExitStack() as stack:
        # Sleeps until the load is at its full height, then streams beside it.
        wait = f"import time; time.sleep({STREAM_S + 2.5:.3f}); "
        code = f"{wait}import sys; from loadtest.bench.raw_client import main; sys.exit(main(sys.argv[1:]))"
        raw = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-c", code, str(port), str(RAW_STREAMS), str(GAP_MS / 1000)], stdout=subprocess.PIPE
            )
        )
        result = run_loadtest(port, sessions_per_s(events_per_s), seconds)
        raw_out, _ = raw.communicate(timeout=60)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/golden/log", timeout=60) as answer:
            log = json.load(answer)
    sent: Times = {entry["request_id"]: entry["sent"] for entry in log}
    raw_times: Times = {name: times for name, (_, times) in json.loads(raw_out).items()}
    ours = compare("load generator", loaded_times(result, seconds), sent)
    return [ours, compare("raw sockets", raw_times, sent)], result


def quiet_accuracy_at(events_per_s: float, seconds: float) -> tuple[list[Accuracy], RunResult]:
    """`accuracy_at`, anew while the load generator calls its own run INVALID; the last attempt counts in any case."""
    for attempt in range(ATTEMPTS):
        found = accuracy_at(events_per_s, seconds)
        if found[1].health.valid or attempt == ATTEMPTS - 1:
            break
        print(f"not quiet enough to judge by, once more: {found[1].health.reasons[0]}", flush=True)
    return found


def cpu_per_event(processes: int, seconds: float) -> float:
    """Processor microseconds per token event of all load processes together."""
    with golden_process() as port:
        rate = sessions_per_s(LIGHT_EVENTS_PER_S * processes)
        found = run_loadtest(port, rate, seconds, processes=processes).health.cpu_us_per_event
    if found is None:
        raise SystemExit("expected token events to divide processor time by, found none")
    return found


def main(argv: Sequence[str]) -> int:
    """Measures, prints, judges."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench.measurement", description=main.__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of each loaded run, default: %(default)s")
    parser.add_argument("--share", type=float, default=COMFORTABLE_SHARE, help="of the ceiling, default: %(default)s")
    parser.add_argument("--json", type=Path, help="write the figures there too")
    options = parser.parse_args(argv)

    with golden_process() as port:
        ceiling = run_loadtest(port, 1.0, 1.0, calibrate="now").settings["ceiling_per_process"]
    print(f"ceiling: {ceiling:,.0f} events/s per process (at least {LEAST_CEILING:,.0f})", flush=True)
    accuracies, result = quiet_accuracy_at(options.share * ceiling, options.seconds)
    peak = result.health.events_per_s_peak
    print(
        f"load: {peak:,.0f} events/s, {peak / ceiling:.0%} of the ceiling; "
        f"processor time {result.health.cpu_us_per_event:.1f} us per event; valid: {result.health.valid}"
    )
    for one in accuracies:
        print(f"{one.client}: TTFT error {one.ttft}; gap error {one.gap}", flush=True)
    agreement = max(
        abs(getattr(accuracies[0], figure).p50 - getattr(accuracies[1], figure).p50) for figure in ("ttft", "gap")
    )
    cpu = [cpu_per_event(processes, options.seconds) for processes in (1, 2)]
    ratio = cpu[1] / cpu[0]
    print(f"processor time per event: {cpu[0]:.1f} us in one process, {cpu[1]:.1f} us in two ({ratio:.2f})")
    bars = {
        f"ceiling >= {LEAST_CEILING:,.0f} events/s": ceiling >= LEAST_CEILING,
        "load reached 95 % of what was asked": peak >= 0.95 * options.share * ceiling,
        "errors <= 1 ms p50, <= 3 ms p99": accuracies[0].good,
        "the second client agrees to 1 ms p50": agreement <= ERROR_P50_S,
        "two processes within 10 % of one": ratio <= MOST_CPU_RATIO,
    }
    for text, good in bars.items():
        print(f"{'passed' if good else 'FAILED'}: {text}")
    if options.json is not None:
        figures: dict[str, Any] = {
            "ceiling_events_per_s": ceiling,
            "load_events_per_s": peak,
            "accuracy": [asdict(one) for one in accuracies],
            "cpu_us_per_event": dict(zip(("one", "two"), cpu, strict=True)),
            "bars": bars,
        }
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
