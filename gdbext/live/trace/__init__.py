"""dispatch-trace: from stops to nested dispatches."""
