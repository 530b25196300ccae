"""Benchmarks that are run by hand: `python -m autograde.benchmarks.<name>`."""
