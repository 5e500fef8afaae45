"""Symbol tables, their index and its cache, and demangling."""
