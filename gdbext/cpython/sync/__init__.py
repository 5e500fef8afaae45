"""The GIL, Python's lock objects, and what a thread's Python frames say that it waits for."""
