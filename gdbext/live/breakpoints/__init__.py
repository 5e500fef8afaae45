"""dispatch-break: where to stop, under which conditions, and what is reported there."""
