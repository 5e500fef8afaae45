"""The live commands: the only code that may set breakpoints or resume the target."""
