"""Waits of PyTorch and of what it is built on: pools, autograd, collectives, devices, OpenMP, the DataLoader."""
