"""One object per architecture: its registers, calling convention, system calls, signal frames and instructions."""
