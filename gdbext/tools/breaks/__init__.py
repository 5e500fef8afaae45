"""The tool dispatch-break: where to stop, under which conditions, and the report of a stop."""
