"""Kernel probes: what a running process dispatches, without stopping it, writing to it or needing a debugger."""
