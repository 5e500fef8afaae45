"""Known bugs of other projects, as data: how each shows in a stuck process, which versions have it, and its cure."""
