"""An example of a package that adds to gdbext: a pool, a recognizer of waits, a known bug and a command."""
