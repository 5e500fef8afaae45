"""The lenders of memory, registers, threads and the memory map: a live process, a core, a recording. Read-only."""
