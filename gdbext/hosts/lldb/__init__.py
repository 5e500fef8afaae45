"""LLDB: target, commands, run control, breakpoints, summaries, batch jobs."""
