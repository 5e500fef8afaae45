"""What each thread does in autograd, and the graph, as reports have them."""
