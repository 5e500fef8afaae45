"""Turns snapshots into findings and one verdict: graph, recursion, crash, progress, advice. Pure functions."""
