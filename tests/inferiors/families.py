"""Deadlocks of the GIL with other things than a mutex. Argument: the kind: join, openmp, stream or loader."""

import ctypes
import os
import sys
import threading

import native_library
import truth

kind = sys.argv[1]
native = native_library.load("families")
holding_gil = native_library.load("families", keep_gil=True)
WANTED = {"join": "join", "openmp": "worker-pool", "stream": "libc-lock", "loader": "loader-lock"}


def other(job, *args):
    def work():
        truth.thread("other", waits="futex", waits_for="gil", holds=WANTED[kind])
        ready.set()
        staged.wait()
        job(*args)

    ready, staged = threading.Event(), threading.Event()
    threading.Thread(target=work, daemon=True).start()
    ready.wait()
    truth.stage()  # this loads a library, so it comes before anybody has the loader's lock
    staged.set()


truth.thread("main", waits="futex", waits_for=WANTED[kind], holds="gil")
truth.note(verdict="deadlock", resources=sorted(["gil", WANTED[kind]]))
if kind == "join":
    truth.stage()
    holding_gil.gil_join()
elif kind == "openmp":
    import torch

    runtime = os.path.join(os.path.dirname(torch.__file__), "lib", "libgomp.so.1")
    truth.stage()
    holding_gil.gil_openmp(ctypes.c_char_p(runtime.encode()))
elif kind == "stream":
    other(native.stream_then_gil)
    native.wait_for_other()
    holding_gil.gil_then_stream()
elif kind == "loader":
    folders = os.environ["GDBEXT_NATIVE"].split(os.pathsep)
    # the harness builds what is named like this: native_library.load("wants_gil_when_loaded")
    paths = [os.path.join(folder, "libwants_gil_when_loaded.so") for folder in folders]
    path = next(path for path in paths if os.path.exists(path))
    os.environ["GDBEXT_LOADING"] = native_library.address(native, "loading")
    gil_then_load, wait_for_other = holding_gil.gil_then_load, native.wait_for_other  # dlsym takes the loader's lock
    other(native.load_then_gil, ctypes.c_char_p(path.encode()))
    wait_for_other()
    gil_then_load(ctypes.c_char_p(b"/nowhere/libnothing.so"))
