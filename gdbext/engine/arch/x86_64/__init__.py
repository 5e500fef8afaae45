"""x86-64: the code that is specific to this architecture."""
