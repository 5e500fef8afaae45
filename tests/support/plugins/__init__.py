"""Plugins of pytest: which tests are skipped, which share a worker, which run alone."""
