"""One folder per debugger; nothing imports them but by name."""
