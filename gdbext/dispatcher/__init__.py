"""PyTorch's dispatcher, read from memory: keysets, operators, tables, kernels and the frames they leave."""
