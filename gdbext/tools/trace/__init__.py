"""The tool dispatch-trace: nested dispatches, by breakpoints or probes, as text, JSON or a page."""
