"""
What a run shows and stores: live progress, the final table, HTML, JSON, CSV, a raw log, Prometheus metrics.

Everything here reads results (`loadtest.result`) and measures nothing itself.
"""
