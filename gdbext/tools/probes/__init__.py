"""The tool dispatch-top, and the kernel probes that count and trace dispatches without a stop."""
