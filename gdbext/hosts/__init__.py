"""The programs that run the tools: the command line, gdb, LLDB."""
