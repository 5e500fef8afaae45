"""The GIL, Python's lock objects, and what a thread waits for according to its Python frames."""
