"""From snapshots to findings and the one verdict: graph, recursion, crash, progress, advice. Pure functions."""
