"""Python stacks of many shapes, one per thread; no torch, any Python from 3.8 on. The truth holds each stack.

A stack is a list of [function, line], innermost first, as the interpreter itself counts them.
"""

import functools
import sys
import threading
import time

import truth

for_ever = threading.Event()
SHAPES = {}


def shape(function):
    SHAPES[function.__name__] = function
    return function


def stay():
    note_stack(sys._getframe(1)); inside.wait(); time.sleep(truth.FOREVER)  # noqa: E702  # one line: one number


def note_stack(frame):
    stack = [["stay", stay.__code__.co_firstlineno + 1]]
    while frame is not None:
        stack.append([frame.f_code.co_name, frame.f_lineno])
        frame = frame.f_back
    truth.thread(threading.current_thread().name, waits="any", stack=stack)


@shape
def plain():
    stay()


@shape
def recursion(depth=50):
    return recursion(depth - 1) if depth else stay()


@shape
def comprehension():
    return [stay() for _ in range(1)]


@shape
def generator():
    def produce():
        yield stay()

    return next(produce())


@shape
def generator_expression():
    return sum(stay() for _ in range(1))


@shape
def through_c_code():
    return sorted([2, 1], key=lambda value: stay())


@shape
def decorated():
    @functools.lru_cache(maxsize=None)
    def inner(value):
        return stay()

    return inner(1)


@shape
def class_body():
    class Body:
        stay()

    return Body


@shape
def method():
    class Thing:
        def __len__(self):
            return stay()

    return len(Thing())


@shape
def executed():
    exec(compile("\n\nstay()", "<made up>", "exec"), {"stay": stay})


@shape
def handler():
    try:
        raise ValueError
    except ValueError:
        stay()


@shape
def long_lines():
    return max(
        1,
        2,
        stay(),
    )


@shape
def nicht_ascii_änderung():
    stay()


inside = threading.Barrier(len(SHAPES) + 1)
for name, function in SHAPES.items():
    threading.Thread(target=function, name=name, daemon=True).start()
inside.wait()
truth.thread("main", waits="any")
truth.note(verdict="idle", file=__file__)
truth.ready()
for_ever.wait()
