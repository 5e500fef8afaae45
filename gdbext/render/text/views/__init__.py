"""One text view a command: ``render(report, style) -> Iterator[str]``, a line each."""
