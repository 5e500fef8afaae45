"""Where a dispatch can be probed: instructions found in the code, proven, and kept."""
