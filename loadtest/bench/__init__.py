"""Benchmarks: each compares what is served here with something else, in one run, as ratios."""
