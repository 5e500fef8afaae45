"""A stopped process: its memory, modules and symbols."""
