"""Threads with every kind of Python stack, blocked for ever. Runs on CPython 3.8 to 3.13.

The truth is what CPython itself says of each thread (sys._current_frames, idents, native ids, names). Argument "plain":
the names of threads are ASCII.
"""

import asyncio
import ctypes
import os
import sys
import threading

import truth

BLOCK_R, BLOCK_W = os.pipe()
READY = threading.Semaphore(0)


def block():
    READY.release()
    os.read(BLOCK_R, 1)


def recurse(depth):
    if depth:
        return recurse(depth - 1)
    return block()


def through_sort():
    def key(item):
        return next(map(recurse, [item]))

    sorted([1], key=key)


CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


def through_ctypes():
    def callback(value):
        recurse(value)
        return 0

    CALLBACK(callback)(3)


def generator(depth):
    if depth:
        yield from generator(depth - 1)
    else:
        yield recurse(1)


def through_next():
    next(generator(2))


async def inner():
    block()


async def middle():
    await inner()


async def outer():
    await asyncio.gather(middle())


def through_asyncio():
    asyncio.new_event_loop().run_until_complete(outer())


async def cancelled_inner():
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        recurse(1)


async def cancelled_middle():
    await cancelled_inner()


async def canceller():
    task = asyncio.get_running_loop().create_task(cancelled_middle())
    await asyncio.sleep(0)
    task.cancel()
    await task


def through_throw():
    """gen.throw() goes down a chain of suspended coroutines without evaluating the outer ones."""
    asyncio.new_event_loop().run_until_complete(canceller())


def through_exec():
    exec(compile("\n\nrecurse(\n1\n)\n", "<made up>", "exec"), globals())


def through_long_function():
    namespace = {}
    source = "def long():\n" + "\n" * 300 + "    x = 1\n" * 300 + "    recurse(0)\n"
    exec(compile(source, "/nowhere/Größe/長い.py", "exec"), globals(), namespace)
    namespace["long"]()


def through_finally():
    try:
        try:
            raise LookupError(1)
        finally:
            recurse(1)
    except LookupError:
        pass


def deep():
    recurse(300)


KINDS = [value for name, value in sorted(globals().items()) if name.startswith("through_")] + [deep]


def stack_of(frame):
    found = []
    while frame is not None:
        code = frame.f_code
        found.append([getattr(code, "co_qualname", code.co_name), code.co_filename, frame.f_lineno])
        frame = frame.f_back
    return found


def main():
    threading.stack_size(1 << 20)  # keeps the cores small
    started, mark = [], "" if sys.argv[1:] == ["plain"] else "é"
    for index, kind in enumerate(KINDS):
        thread = threading.Thread(target=kind, name="{}-{}{}".format(kind.__name__, mark, index), daemon=True)
        thread.start()
        started.append(thread)
    for _ in KINDS:
        READY.acquire()
    truth.until(lambda: all(truth.is_in(0, thread) for thread in started))  # read(2)
    frames, stacks = sys._current_frames(), []
    for thread in [threading.main_thread(), *started]:
        stack = stack_of(frames[thread.ident])
        if thread is threading.main_thread():
            stack[0][2] = line_of("# the main thread waits here")
        stacks.append({"ident": thread.ident, "tid": thread.native_id, "name": thread.name, "stack": stack})
    truth.main_ready("read", stacks=stacks)
    os.read(0, 1)  # the main thread waits here


def line_of(comment):
    with open(__file__, encoding="utf-8") as file:
        return next(number for number, line in enumerate(file, 1) if "os.read(0, 1)  " + comment in line)


main()
