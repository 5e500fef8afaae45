"""PyTorch, read from memory."""
