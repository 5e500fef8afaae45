"""A stopped process: its memory, modules and symbols. Knows nothing of PyTorch."""
