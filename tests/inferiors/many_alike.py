"""Much of one kind. Arguments: KIND COUNT.

KIND: ``events`` (threads in Event.wait), ``locks`` (threads that wait for one Lock), ``operators`` (the same in the
Python kernel of an operator), ``calls`` (one thread, so many kernels deep), ``mappings``.
"""

import ctypes
import mmap
import sys
import threading

kind, count = sys.argv[1], int(sys.argv[2])
for_ever = threading.Event()
lock = threading.Lock()
lock.acquire()
inside = threading.Semaphore(0)


def work():
    inside.release()
    if kind == "events":
        for_ever.wait()
    elif kind == "locks":
        lock.acquire()
    else:
        torch.ops.many_alike.outer(x, 0)


def outer(value, depth):
    return torch.ops.many_alike.inner(value, depth)


def inner(value, depth):
    if kind == "calls" and depth < count:
        return torch.ops.many_alike.outer(value, depth + 1)
    lock.acquire()
    return value


def map_pages():
    """Neighbors of different permissions are mappings of their own."""
    libc = ctypes.CDLL(None)
    libc.mmap.restype = ctypes.c_void_p
    size = mmap.PAGESIZE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    start = libc.mmap(None, ctypes.c_size_t(size * count), mmap.PROT_READ, flags, -1, 0)
    for number in range(1, count, 2):
        libc.mprotect(ctypes.c_void_p(start + size * number), size, mmap.PROT_READ | mmap.PROT_WRITE)


if kind in ("operators", "calls"):
    import torch

    library = torch.library.Library("many_alike", "DEF")
    for function in (outer, inner):
        library.define(f"{function.__name__}(Tensor x, int depth) -> Tensor")
        library.impl(function.__name__, function, "CPU")
    x = torch.ones(2)
threads = {"mappings": 0, "calls": 1}.get(kind, count)
threading.stack_size(64 << 20 if kind == "calls" else 1 << 20)
sys.setrecursionlimit(100_000)
for _ in range(threads):
    threading.Thread(target=work, daemon=True).start()
for _ in range(threads):
    inside.acquire()
if kind == "mappings":
    map_pages()
print("ready", flush=True)
for_ever.wait()
