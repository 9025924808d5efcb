"""
What does a relay cost per token, and how long does it hold one back? Ours and its peers, in turn, in one run.

Each round starts every relay anew and runs, against two scripted workers of exact pace:

  stream  200 concurrent streams, 128 tokens each at 50 tokens/s, 800 requests, starts spread evenly
  plain   32 closed-loop clients, 20,000 small requests
  light   64 streams, 32 tokens each, 1,024 requests: what a relay that is not busy adds to the first byte
  many    2,000 concurrent streams of 1 token/s (with --many): memory per stream
  share   with --processes N, for our gateway with one process: an N-th of the streams, which is what each of N has

CPU time is user plus system of the relay's whole process tree; it counts only together with the lag, because a relay
that holds tokens back looks cheap. Our own row is void unless our metrics account for every request and token.
Sends traffic to 127.0.0.1 only.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from loadtest.bench import targets
from loadtest.bench.bars import BARS, Judgement, judge, ratio
from loadtest.bench.processes import DIRECT, running, wait_answering

UPSTREAMS = (9100, 9101)
PORT = 9200
ADMIN_PORT = 9201
TOKENS = 128
LIGHT_TOKENS = 32
"""Short streams: a percentile of first bytes wants many of them."""
STREAMS = 200
OPEN_FILES = 8192

Rows = dict[str, dict[str, list[dict[str, Any]]]]


def main() -> None:
    """Command line of `make bench`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--many", action="store_true", help="also 2,000 slow streams, for memory")
    parser.add_argument(
        "--processes",
        type=int,
        default=1,
        metavar="N",
        help="also our gateway with N processes, against itself with one",
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="leave the other relays out")
    parser.add_argument(
        "--peers", type=Path, default=Path(".build/bench-peers"), help="environment with vllm-router and smg"
    )
    parser.add_argument("--json", type=Path, help="write all rounds to this file")
    options = parser.parse_args()
    console = Console()
    modes = [("stream", STREAMS, 4 * STREAMS), ("plain", 32, 20_000), ("light", 64, 1024)]
    if options.many:
        modes.append(("many", 2000, 2000))
        _raise_file_limit()
    rows: Rows = {}
    with tempfile.TemporaryDirectory(prefix="relay-cost-") as name, contextlib.ExitStack() as stack:
        compared = _targets(Path(name), options.peers, options.only, options.processes, console)
        for port in UPSTREAMS:
            upstream = [sys.executable, "-m", "loadtest.bench.paced_upstream", str(port)]
            stack.enter_context(running(upstream, Path(name) / f"upstream-{port}.log"))
            wait_answering(port, "the scripted worker", within_s=15)
        for number in range(options.rounds):
            for target in compared:
                log = Path(name) / f"{target.name}.log"
                with running(list(target.command), log) as process:
                    wait_answering(PORT, target.name, within_s=60, log=log)
                    share = STREAMS // options.processes
                    shared = options.processes > 1 and target.name == "vllm-gateway"
                    for mode, concurrency, requests in modes + [("share", share, 4 * share)] * shared:
                        result = _measure(target, mode, concurrency, requests, process.pid)
                        rows.setdefault(target.name, {}).setdefault(mode, []).append(result)
                        console.print(f"round {number + 1}/{options.rounds}  {target.name:<14}{_short(result)}")
    console.print(_table(rows))
    judgements = _judge(rows, console)
    if options.json:
        options.json.write_text(json.dumps({"rounds": rows, "bars": judgements}, indent=1))
    if any(result["errors"] for modes_ in rows.values() for results in modes_.values() for result in results):
        sys.exit("a relay lost or garbled tokens, or our metrics did not account for all: the rows above are void")


def _targets(folder: Path, peers: Path, only: list[str], processes: int, console: Console) -> list[targets.Target]:
    ours = [targets.gateway(folder, PORT, ADMIN_PORT, UPSTREAMS)]
    if processes > 1:
        ours.append(targets.gateway(folder, PORT, ADMIN_PORT, UPSTREAMS, processes=processes))
    found = {
        **{target.name: target for target in ours},
        "nginx": targets.nginx(folder, Path(".system"), PORT, UPSTREAMS),
        "vllm-router": targets.vllm_router(peers, PORT, ADMIN_PORT, UPSTREAMS),
        "smg": targets.smg(peers, PORT, ADMIN_PORT, UPSTREAMS),
    }
    if unknown := set(only) - set(found):
        sys.exit(f"--only {', '.join(sorted(unknown))}: known relays are {', '.join(found)}")
    chosen = []
    for name, target in found.items():
        if only and name not in only and (processes == 1 or target not in ours):
            continue
        if target is None:
            console.print(f"[yellow]{name} is not installed and left out (make bench brings the peers)")
            continue
        chosen.append(target)
    return chosen


def _measure(target: targets.Target, mode: str, concurrency: int, requests: int, pid: int) -> dict[str, Any]:
    before = _at_rest(target.metrics_url) if target.metrics_url and mode == "stream" else None
    command = [
        *(sys.executable, "-m", "loadtest.bench.relay_client", str(PORT), "stream" if mode == "share" else mode),
        *("--concurrency", str(concurrency), "--requests", str(requests)),
        *("--tokens", str(LIGHT_TOKENS if mode == "light" else TOKENS), "--pid", str(pid)),
    ]
    result: dict[str, Any] = json.loads(subprocess.check_output(command))
    if before is not None and target.metrics_url:
        threading.Event().wait(2)  # counters are merged once a second
        grew = [after - start for start, after in zip(before, _counted(target.metrics_url), strict=True)]
        gaps = requests * (TOKENS - 1)
        # Two events that arrive in one read have one arrival time: up to a quarter of the gaps may be merged.
        if grew[:2] != [requests, requests * TOKENS] or not 0.75 * gaps <= grew[2] <= 1.25 * gaps:
            result["errors"] += 1
            result["void"] = f"metrics grew by {grew}; relayed were {requests} requests, {requests * TOKENS} tokens"
    return result


def _at_rest(url: str) -> list[float]:
    """
    What was counted, once that stands still: tries to find the relay answering that were given up may still have to be
    read by a process that starts later than the one that answered, and to end.
    """
    pause = threading.Event()
    before: list[float] = []
    while before != (now := _counted(url)) or _sums(url, ("gateway_requests_in_flight",)) != [0]:
        before = now
        pause.wait(1)
    return now


def _counted(url: str) -> list[float]:
    names = ("gateway_requests_total", "gateway_output_tokens_total", "gateway_inter_token_latency_seconds_count")
    return _sums(url, names)


def _sums(url: str, names: tuple[str, ...]) -> list[float]:
    with DIRECT.open(url, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    return [sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name)) for name in names]


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < OPEN_FILES:
        sys.exit(f"--many needs {OPEN_FILES} open files, the hard limit is {hard}: raise it with `ulimit -Hn`")
    if soft < OPEN_FILES:
        resource.setrlimit(resource.RLIMIT_NOFILE, (OPEN_FILES, hard))


def _short(result: dict[str, Any]) -> str:
    shown = {key: value for key, value in result.items() if value is not None and key not in ("events", "tokens")}
    return " ".join(f"{key}={value}" for key, value in shown.items())


def _table(rows: Rows) -> Table:
    table = Table(title="medians over rounds")
    columns = {
        "µs per event": ("stream", "us"),
        "lag p50 ms": ("stream", "lag_p50_ms"),
        "lag p99 ms": ("stream", "lag_p99_ms"),
        "µs per request": ("plain", "us"),
        "first byte p50 ms": ("light", "first_byte_p50_ms"),
        "p99 ms": ("light", "first_byte_p99_ms"),
        "KB per stream": ("many", "kb_per_stream"),
    }
    table.add_column("relay")
    for column in (*columns, "errors"):
        table.add_column(column, justify="right")
    for name, modes in rows.items():
        cells = [
            f"{statistics.median(result[figure] for result in modes[mode]):.2f}" if mode in modes else "–"
            for mode, figure in columns.values()
        ]
        errors = sum(result["errors"] for results in modes.values() for result in results)
        table.add_row(name, *cells, str(errors))
    return table


def _against_one(name: str, rows: Rows) -> str:
    """
    Several gateway processes against one: what an event and a request cost more. An event costs less where many arrive
    together, so with as much for each process as one process has by itself is a comparison of its own.
    """
    said = []
    for mode, of_one, what in (
        ("stream", "stream", "event"),
        ("stream", "share", "event, as many streams for each process"),
        ("plain", "plain", "small request"),
    ):
        many = [result["us"] for result in rows[name][mode]]
        one = [result["us"] for result in rows["vllm-gateway"][of_one]]
        interval = ratio(many, one)
        said.append(f"CPU per {what} {interval.mean:.3f} (95 %: {interval.low:.3f} to {interval.high:.3f})")
    return f"{name} / vllm-gateway: {', '.join(said)}"


def _judge(rows: Rows, console: Console) -> list[dict[str, Any]]:
    ours = rows.get("vllm-gateway")
    judged: list[dict[str, Any]] = []
    if ours is None:
        return judged
    for name in rows:
        if name.startswith("vllm-gateway x"):
            console.print(_against_one(name, rows))
    for bar in BARS:
        if bar.peer not in rows:
            console.print(f"{bar.text} against {bar.peer}: not measured")
            continue
        mine = [result[bar.figure] for result in ours[bar.mode]]
        interval = ratio(mine, [result[bar.figure] for result in rows[bar.peer][bar.mode]])
        verdict = judge(interval, bar.limit)
        colour = {Judgement.PASSED: "green", Judgement.FAILED: "red", Judgement.UNDECIDED: "yellow"}[verdict]
        console.print(
            f"{bar.text} / {bar.peer}: {interval.mean:.2f} (95 %: {interval.low:.2f} to {interval.high:.2f}), "
            f"bar {bar.limit}: [{colour}]{verdict}[/]"
        )
        judged.append(
            {"peer": bar.peer, "text": bar.text, "limit": bar.limit, "mean": interval.mean, "low": interval.low,
             "high": interval.high, "judgement": verdict.value}
        )  # fmt: skip
    return judged


if __name__ == "__main__":
    main()
