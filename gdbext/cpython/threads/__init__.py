"""Interpreters, thread states, their frames and names."""
