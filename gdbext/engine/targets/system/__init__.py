"""Facts about processes from Linux: /proc, sockets, the other ends of fds, architectures."""
