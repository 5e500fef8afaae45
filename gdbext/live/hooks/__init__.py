"""Where in the target the dispatcher can be watched, and what is read there."""
