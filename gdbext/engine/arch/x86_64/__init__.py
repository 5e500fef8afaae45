"""x86-64: everything that is true of this architecture only."""
