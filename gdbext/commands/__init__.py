"""One file per command: parse the arguments, ask the session, return a Report."""
