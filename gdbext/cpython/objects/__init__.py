"""Python objects in memory: strings, numbers, containers, code, functions."""
