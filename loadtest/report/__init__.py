"""
What a run shows and stores: live progress, the final table, HTML, JSON, CSV, a raw log, Prometheus metrics.

Everything here reads results (`loadtest.result`) and measures nothing itself.
"""

from loadtest.report.table import print_table, result_json, write_json

__all__ = ["print_table", "result_json", "write_json"]
