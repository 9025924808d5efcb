"""The types of the messages between the master of a run and its load processes, on Locust's own channel."""

BEGIN = "loadtest_begin"
"""Master to process: the perf_counter time at which the schedule starts (the clock is the machine's)."""
END = "loadtest_end"
"""Master to process: no new requests."""
REPORT = "loadtest_report"
"""Process to master: a `ProcessReport`."""
