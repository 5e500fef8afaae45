"""Targets, debuggers, files and reports that are made up."""
