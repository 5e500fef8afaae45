"""One folder per architecture: registers, calling convention, system calls, signal frame, decoder."""
