"""The library: what ``import gdbext`` offers (docs/library.md)."""
