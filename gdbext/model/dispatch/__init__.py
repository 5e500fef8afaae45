"""The dispatcher's own words: events, passes through it, kernels, the thread-local state."""
