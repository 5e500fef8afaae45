"""How layouts are measured from installed headers; never on the way to a report."""
