"""The BPF programs, the system calls that load them, and the ring buffer that they write."""
