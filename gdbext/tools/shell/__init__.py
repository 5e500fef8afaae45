"""``scripts/dispatch shell``: the library in a Python prompt."""
