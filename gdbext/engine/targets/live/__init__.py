"""Live processes: held, stopped briefly, or read while they run."""
