"""Real programs that hang as they are meant to, and how they are looked at."""
