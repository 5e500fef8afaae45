"""How people get in: the commands inside gdb, and the launcher behind scripts/dispatch."""
