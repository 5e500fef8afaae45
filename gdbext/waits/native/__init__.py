"""Waits of C and C++ code: what the C library and the C++ runtime make threads wait for."""
