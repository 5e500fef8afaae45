"""What this machine has (debuggers, Pythons, releases of PyTorch, daemons), and how it is started."""
