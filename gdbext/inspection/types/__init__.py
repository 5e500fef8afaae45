"""C++ objects of PyTorch as debuggers show them: a summary of one line, and what is inside."""
