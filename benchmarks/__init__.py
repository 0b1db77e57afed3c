"""Benchmarks: ratios against a peer that is measured in the same run. `make bench` runs them all."""
