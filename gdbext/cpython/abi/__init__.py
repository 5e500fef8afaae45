"""The version of CPython, and everything that differs between versions: one row each."""
