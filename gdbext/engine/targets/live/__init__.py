"""Live processes: seized, stopped briefly, or read while they run."""
