"""Which CPython this is, and all that differs between its versions."""
