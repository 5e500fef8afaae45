"""Threads: snapshots, and how each is reported."""
