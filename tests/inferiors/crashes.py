"""Programs that crash. Arguments: the handlers that hide it ("none", "torch", "faulthandler", "torch+faulthandler", or
a number for native/crashes.cpp), and a crash below."""

import ctypes
import faulthandler
import mmap
import os
import sys
import threading

import native_library
import truth

handlers, what = sys.argv[1:3]
library = native_library.load("crashes")
SIGNALS = {"divide": 8, "sent": 11, "none_released": 6}
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
MBIND = 237


class Pictures:
    def __getitem__(self, index):
        return library.decode_frame(None)


def null():
    Pictures()[0]


def divide():
    library.divide_by(0)


def assertion():
    library.check_width(ctypes.c_long(-3))


def free_twice():
    library.free_twice()


def overrun_heap():
    library.overrun_heap()


def overrun_stack():
    library.overrun_stack(b"x" * 200, 200)


def none_released():
    for _ in range(10_000_000):
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(None))


def trap():
    library.run_trap()


def run(code):
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    library.run_bytes(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory))))


def avx512():
    """An EVEX instruction that no CPU has: opcode map 7 is reserved."""
    run(bytes.fromhex("62f7fd48ffc0c3"))


def without_gil():
    library.use_python_in_thread()


def fatal():
    ctypes.pythonapi.Py_FatalError(b"the counts of the example do not match")


class Filter(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]


class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]


def refused():
    """seccomp kills the process at mbind(2): load the number, compare, kill (SECCOMP_RET_KILL_PROCESS) or allow."""
    rows = (Filter * 4)(
        Filter(0x20, 0, 0, 0), Filter(0x15, 0, 1, MBIND), Filter(0x06, 0, 0, 0x80000000), Filter(0x06, 0, 0, 0x7FFF0000)
    )
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(Program(4, rows)))
    libc.syscall(MBIND, 0, 0, 0, 0, 0, 0)


def small_stack():
    threading.stack_size(64 << 10)
    thread = threading.Thread(target=library.fill_large_frame, args=(1,))
    thread.start()
    thread.join()


def recursion():
    library.recurse(1 << 30)


def sent():
    os.kill(os.getpid(), 11)


if "torch" in handlers:
    import torch

    torch._C._set_worker_signal_handlers()
if "faulthandler" in handlers:
    faulthandler.enable()
if handlers.isdigit():
    library.install_handlers(SIGNALS.get(what, 11), int(handlers))
truth.thread("main", waits=None)
truth.ends("a signal")
truth.ready()
globals()[what]()
