"""Benchmarks: what a relay costs, beside its peers. Ratios with intervals; never part of the tests."""
