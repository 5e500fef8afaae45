"""Interpreters, thread states, Python frames, their variables and names."""
