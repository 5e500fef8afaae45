"""gdbext explains a hung or crashed PyTorch process from GDB, from LLDB, or with no debugger at all."""

__version__ = "0.1.0"
