"""What the page says about its own figures: settings, definitions, and how other tools would count."""

from __future__ import annotations

from typing import Any

from loadtest.report import words
from loadtest.report.figures import Figures
from loadtest.report.rescore import VllmScore
from loadtest.result import RunResult

COMPARISON = (
    "One run against one other: a difference smaller than what repeats of the same run differ by means nothing. The "
    "other run is drawn in the second colour."
)
THRESHOLDS = (
    "Given with --slo. A percentile counts failed and unsent requests as infinitely slow; one missed: exit code 1."
)
TIMELINE = "Point at one chart to see the same moment in all of them. The shaded stretch is the steady window."
GAPS = (
    "A stall of the whole server is a vertical smear, one slow stream a few high cells, a change of the batch size a "
    "step of the whole band."
)
LOAD = "Where more requests in flight no longer bring more tokens, they only wait for each other."
REQUESTS = "Request ids were sent as x-request-id, so that a slow one can be found in the server's log."
ELSEWHERE = (
    "The same raw log by the definitions of `vllm bench serve`, for comparing with its figures. Its TTFT ends at the "
    "first event even if that bears no token, its ITL is one sample per event, a stream that broke off after its first "
    "event is a success, and rates include ramp and tail."
)

_DEFINITIONS = (
    (
        "Token-bearing event",
        "A stream event with text, reasoning or a piece of a tool call. Role, empty, usage and comment events never "
        "count.",
    ),
    (
        "Time to first token (TTFT)",
        "From sending the request to its first token-bearing event; from schedule: from the moment it was due, so that "
        "waiting in the load generator counts.",
    ),
    (
        "Gap between token events",
        "Between two token-bearing events of one stream: what a reader sees, stalls included. Pooled over all streams.",
    ),
    (
        "Latency per token",
        "Each gap divided by the tokens that ended it, once per token; only where the server tells the tokens of each "
        "event.",
    ),
    (
        "Time per output token (TPOT)",
        "(last − first token-bearing event) / (output tokens − tokens of the first event), tokens from the server's "
        "usage; answers of one token have none.",
    ),
    (
        "End to end",
        "From the scheduled moment to the last token, of an answer that is no stream to its last byte. Service time: "
        "from sending.",
    ),
    (
        "Rates",
        "Successes by the moment they ended, tokens by the moment they arrived, those of requests that failed later "
        "included; divided by the length of the steady window.",
    ),
    (
        "Percentiles",
        "Of successes, so that a quick failure never improves one; the second line counts every failed or unsent "
        "request as infinitely slow. Requests that the scenario cancels are in neither. From histograms, cells of "
        "0.5 %.",
    ),
    ("Attainment", "Requests that met every bound / all that were due; failed and unsent ones are bad."),
)

_NAMES = {
    "duration_s": "duration",
    "warmup_s": "warm-up",
    "drain_s": "time to finish",
    "connection_policy": "connections",
    "max_tokens": "output tokens asked for",
}


def settings_list(result: RunResult) -> list[tuple[str, str]]:
    """Everything that was set, in the order in which the run stored it."""
    return [(_NAMES.get(name, name.replace("_", " ")), _value(name, value)) for name, value in result.settings.items()]


def _value(name: str, value: Any) -> str:
    if value is None or value == "":
        return words.NOTHING
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name.endswith("_s") and isinstance(value, int | float):
        return words.duration(float(value)) if value else "none"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_value(key, entry)}" for key, entry in value.items()) or words.NOTHING
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return str(value)


def definitions_list(result: RunResult, found: Figures) -> list[tuple[str, str]]:
    """What each figure means, beginning with the window and the client's own state."""
    health = result.health
    rows = [
        (
            "Steady window",
            f"{words.window_words(found).capitalize()}. Warm-up before it and the tail after it do not count.",
        ),
        (
            "Send lag of the client",
            f"p50 {words.duration(health.send_lag_p50_s)}, p99 {words.duration(health.send_lag_p99_s)}",
        ),
        ("Loop lag of the client", f"p99 {words.duration(health.loop_lag_p99_s)}"),
        ("Busiest process of the client", f"{words.share(health.cpu_share_max)} of a core"),
        ("Events of the busiest second", _ceiling(result)),
    ]
    return [*rows, *_DEFINITIONS]


def _ceiling(result: RunResult) -> str:
    peak, ceiling = result.health.events_per_s_peak, result.health.ceiling_events_per_s
    of = f" of a ceiling of {words.digits(ceiling)}" if ceiling else "; no ceiling was calibrated"
    return f"{words.digits(peak)}{of}"


def vllm_facts(score: VllmScore) -> list[tuple[str, str]]:
    """The figures of vLLM's table that are no durations."""
    return [
        ("Successful requests", f"{score.completed:,} (failed: {score.failed:,})"),
        ("Benchmark duration", f"{score.duration_s:.2f} s"),
        ("Total input tokens", f"{score.total_input:,}"),
        ("Total generated tokens", f"{score.total_output:,}"),
        ("Request throughput", f"{score.request_throughput:.2f} requests/s"),
        ("Output token throughput", f"{score.output_throughput:.2f} tokens/s"),
        ("Total token throughput", f"{score.total_token_throughput:.2f} tokens/s"),
        ("Peak output token throughput", f"{score.max_output_tokens_per_s:.2f} events/s"),
        ("Peak concurrent requests", f"{score.max_concurrent_requests:,}"),
    ]
