"""Recordings: writes what a target was read for into a small file, and replays it (docs/recording.md)."""
