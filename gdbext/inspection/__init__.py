"""The one road from a target to a report."""
