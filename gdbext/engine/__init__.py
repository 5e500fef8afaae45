"""A process as bytes: architecture, files, memory, stacks, glibc. Knows no Python and no PyTorch."""
