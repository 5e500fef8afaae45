"""Offsets and enumerations of the structures that are read: data with its source, never typed by hand."""
