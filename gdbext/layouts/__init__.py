"""Offsets and enumerations of the structures we read: data with provenance, never typed by hand."""
