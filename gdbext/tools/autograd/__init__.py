"""The tool dispatch-autograd: forward or backward, the running node, its forward operator, the graph."""
