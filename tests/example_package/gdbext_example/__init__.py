"""An example of a package that adds to gdbext: a pool, a recogniser of waits, a known bug and a command."""
