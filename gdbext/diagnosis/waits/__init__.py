"""Recognizers of waits: what a thread waits for and what holds it, one file per family."""
