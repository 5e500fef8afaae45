"""Measures layouts from installed headers; never on the way to a report."""

PERMISSION = "GDBEXT_GENERATE"
"""Environment variable: "0" forbids to run a compiler when no shipped layout fits; "as-me" (--measure-as-me) lets that
be done with our own rights where the process or its files belong to another user."""
FORBIDDEN = "0"
AS_ME = "as-me"
