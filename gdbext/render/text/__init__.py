"""Reports and traces as text for people."""
