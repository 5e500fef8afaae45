"""Reports and traces as JSON: the only place that knows JSON keys."""
