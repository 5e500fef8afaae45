"""Autograd in memory: nodes of the graph, their hooks, and the engine that runs them."""
