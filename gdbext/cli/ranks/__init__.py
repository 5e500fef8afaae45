"""``scripts/dispatch ranks``: all ranks of a job, one report."""
