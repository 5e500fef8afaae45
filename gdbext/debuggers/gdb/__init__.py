"""All that is gdb: target, commands, run control, breakpoints, batch job."""
