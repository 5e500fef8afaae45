"""gdb: target, commands, run control, breakpoints, pretty-printers, batch jobs."""
