"""
Scores a raw log with vLLM's own code. Runs in the engine's environment and imports nothing of ours:

`ENGINE_PYTHON score_with_vllm.py LOG...` prints what `vllm.benchmarks.serve.calculate_metrics` returns, one JSON a log.

What its streaming client would have seen is rebuilt from the log: a time per event with a choice, whether or not that
event bears a token.
"""

import dataclasses
import json
import sys
from itertools import accumulate, pairwise

from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
from vllm.benchmarks.serve import calculate_metrics

PERCENTILES = [50.0, 90.0, 95.0, 99.0]


def as_seen_by_vllm(entry):
    """One line of the log as vLLM's client would have reported it: a 200 with a first event is a success."""
    gaps = [gap / 1e6 for gap in entry["gaps_us"]]
    bearing = [] if entry["first_token_s"] is None else list(accumulate(gaps, initial=entry["first_token_s"]))
    times = sorted(bearing + entry["other_choices_s"])
    broken = entry["outcome"] in ("reset", "timeout", "malformed", "connect", "cut_at_end")
    output = RequestFuncOutput(
        start_time=entry["sent_s"], success=bool(times) and entry["status"] == 200 and not broken
    )
    if output.success:
        output.ttft = times[0] - entry["sent_s"]
        output.itl = [later - earlier for earlier, later in pairwise(times)]
        output.latency = times[-1] - entry["sent_s"]
        output.output_tokens = entry["output_tokens"] or 0
        output.prompt_len = entry["prompt_tokens"] or 0
    return output


for path in sys.argv[1:]:
    with open(path) as log:
        entries = [json.loads(line) for line in log]
    entries = [entry for entry in entries if entry["sent_s"] is not None and entry["outcome"] != "cancelled"]
    duration = max(entry["ended_s"] for entry in entries) - min(entry["sent_s"] for entry in entries)
    metrics, _ = calculate_metrics([], [as_seen_by_vllm(entry) for entry in entries], duration, None, PERCENTILES, {})
    print("SCORE " + json.dumps(dataclasses.asdict(metrics), default=float))
