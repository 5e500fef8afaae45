"""crash: SIGSEGV in Python without torch."""

import ctypes

import truth

truth.thread("main", waits=None)
truth.ends("SIGSEGV")
truth.ready()
ctypes.string_at(0x10)
