"""Thread-local state that takes part in dispatch, and tensors."""
