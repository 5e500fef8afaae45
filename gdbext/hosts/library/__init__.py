"""The library: the API of ``import gdbext`` (docs/library.md)."""
