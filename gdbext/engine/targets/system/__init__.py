"""Asks the system about processes: /proc, sockets, holders of descriptors, architectures of Linux."""
