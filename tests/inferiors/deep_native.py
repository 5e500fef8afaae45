"""A live stack of very many native frames of a plain recursive C function. Argument: how many (default 25000)."""

import ctypes
import sys
import threading

import native_library
import truth

depth = int(sys.argv[1]) if len(sys.argv) > 1 else 25000
locks = native_library.load("locks")
locks.recurse.argtypes = [ctypes.c_long]
threading.stack_size((16 << 20) + depth * 512)


def recurse():
    truth.thread("recursive", waits="any")
    truth.note(verdict="idle", depth=depth)
    truth.stage()
    locks.recurse(depth)


worker = threading.Thread(target=recurse, daemon=True)
worker.start()
worker.join()
