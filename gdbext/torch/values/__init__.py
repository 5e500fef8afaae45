"""The small values of PyTorch: containers, IValues, schema types, dtypes, dispatch keys."""
