"""CPython's runtime, read from memory."""
