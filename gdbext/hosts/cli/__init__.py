"""scripts/dispatch: options, checks, and starting a debugger."""
