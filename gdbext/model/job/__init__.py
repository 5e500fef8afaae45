"""Reports of the ranks of a job, and what they say together."""
