"""Targets: memory, registers, threads and the memory map of a live process, a core or a recording. Read-only."""
