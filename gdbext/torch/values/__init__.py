"""PyTorch's small values: containers, IValues, schema types, dtypes, dispatch keys."""
