"""``scripts/dispatch known``: the catalogue of known bugs, and old reports and recordings compared with it."""
