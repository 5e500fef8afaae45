"""The tool dispatch-values: what operators are called with and return; the first NaN."""
