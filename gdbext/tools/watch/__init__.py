"""The tool watch: wait until a process makes no progress, then keep the evidence."""
