"""Thread-local dispatch state, settings, autograd nodes and tensors."""
