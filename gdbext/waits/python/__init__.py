"""Waits of Python code: the GIL, the objects of ``threading``, prompts, and pools written in Python."""
