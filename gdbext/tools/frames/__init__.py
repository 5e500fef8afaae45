"""The tool dispatch-frames: Python functions and dispatches in the debugger's own backtrace."""
