"""The GIL, Python's lock objects, and the object that a thread waits for, by its Python frames."""
