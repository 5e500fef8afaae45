"""Main threads that the kernel lets nobody wake, and healthy ones beside them. Arguments: the scenario, and a file.

``userfault``: a page that userfaultfd never gives, touched with the GIL in hand. ``served``: pages that another thread
gives at once. ``page``, ``read``, ``exec``: a file whose file system does not answer, mapped and touched, read, or
executed. ``mmap``: the same file, mapped while another thread reads it: the kernel then keeps the lock of the whole
memory, and whoever reads it, its arguments or its environment sleeps, too.
``background``: a child in the background reads from the terminal. ``sleeps``: nothing but that; ``runs``: with
the GIL, that neither. ``leaves``: the main thread ends by itself, and others go on.
"""

import ctypes
import fcntl
import mmap
import os
import pty
import queue
import struct
import subprocess
import sys
import threading
import time

import truth

SYS_USERFAULTFD = 323
UFFDIO_API, UFFDIO_REGISTER, UFFDIO_COPY = 0xC018AA3F, 0xC020AA00, 0xC028AA03
PAGE = 4096
libc = ctypes.CDLL(None, use_errno=True)


def lazy_pages(count):
    """A userfaultfd and the address of pages that it is to give."""
    descriptor = libc.syscall(SYS_USERFAULTFD, os.O_CLOEXEC)
    if descriptor < 0:
        sys.exit(f"no userfaultfd: {os.strerror(ctypes.get_errno())}")
    fcntl.ioctl(descriptor, UFFDIO_API, bytearray(struct.pack("3Q", 0xAA, 0, 0)))
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    address = libc.mmap(None, count * PAGE, mmap.PROT_READ | mmap.PROT_WRITE, 0x22, -1, 0)
    fcntl.ioctl(descriptor, UFFDIO_REGISTER, bytearray(struct.pack("4Q", address, count * PAGE, 1, 0)))
    return descriptor, address


def serve(descriptor):
    page = ctypes.create_string_buffer(2 * PAGE)
    source = (ctypes.addressof(page) + PAGE - 1) & -PAGE
    while True:
        fault = os.read(descriptor, 32)
        (address,) = struct.unpack_from("Q", fault, 16)
        fcntl.ioctl(descriptor, UFFDIO_COPY, bytearray(struct.pack("4Qq", address & -PAGE, source, PAGE, 0, 0)))


def touch_for_ever(address, count):
    while True:
        for page in range(count):
            place = ctypes.c_void_p(address + page * PAGE)
            libc.memcmp(place, place, ctypes.c_size_t(1))  # without the GIL, which the server needs
        libc.madvise(ctypes.c_void_p(address), ctypes.c_size_t(count * PAGE), mmap.MADV_DONTNEED)


def wants_gil():
    truth.thread("wants-gil", waits=None)
    ready.set()
    while True:
        time.sleep(0.01)


def background():
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, 0x540E, 0)  # TIOCSCTTY: the harness has made us a session's leader
    child = os.fork()
    if child:
        os.read(ours, 1)
        os._exit(0)
    os.setpgid(0, 0)
    tid = threading.get_native_id()
    truth.main_ready(None, stopped=[tid], terminal=os.ttyname(theirs))
    os.read(theirs, 1)


scenario, *rest = sys.argv[1:]
ready = threading.Event()
if scenario == "background":
    background()
truth.thread("main", waits=None)
if scenario == "sleeps":
    truth.ready()
    time.sleep(truth.FOREVER)
if scenario == "runs":
    threading.Thread(target=wants_gil, daemon=True).start()
    ready.wait()
    truth.ready()
    while True:
        sum(range(1000))
if scenario == "leaves":
    threading.Thread(target=queue.Queue().get, name="worker").start()
    truth.ready()
    libc.pthread_exit(None)
count = 64 if scenario == "served" else 1
descriptor, address = lazy_pages(count) if scenario in ("userfault", "served") else (-1, 0)
if scenario == "served":
    threading.Thread(target=serve, args=(descriptor,), daemon=True).start()
    truth.ready()
    touch_for_ever(address, count)
if scenario == "exec":
    truth.ready()
    subprocess.run(rest, close_fds=False, check=False)
if scenario == "read":
    with open(rest[0], "rb", buffering=0) as file:
        truth.ready()
        file.read(10)
if scenario == "mmap":
    cached, descriptor = os.open(rest[0], os.O_RDONLY), os.open(rest[0], os.O_RDONLY | os.O_SYNC)
    threading.Thread(target=os.read, args=(cached, 10), daemon=True).start()
    time.sleep(0.5)
    truth.ready()
    mmap.mmap(descriptor, PAGE, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ)
threading.Thread(target=wants_gil, daemon=True).start()
ready.wait()
if scenario == "userfault":
    truth.ready()
    ctypes.PyDLL(None).memcmp(ctypes.c_void_p(address), ctypes.c_void_p(address + 8), ctypes.c_size_t(8))
if scenario == "page":
    with open(rest[0], "rb") as file:
        mapped = mmap.mmap(file.fileno(), PAGE, prot=mmap.PROT_READ)
    truth.ready()
    mapped[0]
