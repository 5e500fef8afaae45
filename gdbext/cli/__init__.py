"""scripts/dispatch: options, checks, and running a debugger."""
