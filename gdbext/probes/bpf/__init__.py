"""Kernel probes: the BPF programs, the system calls that load them, and the ring that they write."""
