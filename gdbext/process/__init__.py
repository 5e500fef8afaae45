"""The process as seen from outside: memory, ELF modules, symbols, unwinding. Knows nothing of PyTorch."""
