"""CPython's runtime, read from memory: interpreters, thread states, frames, the GIL, simple objects."""
