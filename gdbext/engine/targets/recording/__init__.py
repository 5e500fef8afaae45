"""Recordings: what was read of a target, in a small file, and the target that such a file is (docs/recording.md)."""
