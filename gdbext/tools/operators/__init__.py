"""The tools dispatch-op, -lookup, -keyset and -tls: operators, tables, keys, thread state."""
