"""Snapshots of threads, and their reports: frames, source lines, operators' arguments."""
