"""From snapshots to findings and the one verdict: graph, recursion, crash, advice, phrasing. Pure."""
