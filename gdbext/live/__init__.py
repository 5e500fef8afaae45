"""Breakpoints and resuming: the only code that may let the target run."""
