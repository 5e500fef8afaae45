"""The GIL, locks, and what Python code waits for in its own words."""
