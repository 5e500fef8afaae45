"""All that is LLDB: target, commands, run control, breakpoints, batch job."""
