"""What the system says about processes: /proc, sockets, holders of descriptors, architectures of Linux."""
