"""Breakpoints and resuming: the only code allowed to resume the process."""
