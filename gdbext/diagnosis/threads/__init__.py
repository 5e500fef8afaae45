"""Snapshots of threads, and what is reported of each: frames, source lines, operators' arguments."""
