"""A thread and all that is reported of it: frames, waits, its pool, its progress."""
