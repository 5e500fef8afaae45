"""Pretty printers for people who do have debug information."""
