"""Recognizers: what a thread waits for and who holds it, one file per family of waits."""
