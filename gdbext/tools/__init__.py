"""The tools: one folder each, and the table that names them."""
