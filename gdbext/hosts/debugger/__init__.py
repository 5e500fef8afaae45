"""The parts that gdb and LLDB share: the protocol of a debugger, jobs, completion, the shell of commands."""
