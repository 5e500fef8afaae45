"""ELF files: programs, libraries and cores, on disk and in memory."""
