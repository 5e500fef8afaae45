"""What a debugger (or a core file) lends: memory, registers, threads and the map of modules. Read-only."""
