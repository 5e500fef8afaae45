"""Loops that only seem to sleep: each wakes every few milliseconds and replaces its objects. Arguments: the loop, and
the seconds of each sleep. What a loop's objects have in common at every sleep is in its docstring."""

import sys
import threading
import time

import torch
import truth

torch.set_num_threads(1)
pause = float(sys.argv[2])


def full():
    """``t`` is (n, 2n) and full of n."""
    n = 0
    while True:
        n = n % 40 + 1
        t = torch.full((n, 2 * n), float(n))
        time.sleep(pause)


def pair():
    """``t`` is int64 and (n, 3) if it is contiguous, else float64 and (3, n)."""
    n = 0
    while True:
        n = n % 30 + 2
        t = torch.full((n, 3), n)
        time.sleep(pause)
        t = torch.full((n, 3), float(n), dtype=torch.float64).t()
        time.sleep(pause)


def attribute():
    """``holder.t`` is (n,) and full of n, in a new object each time."""

    class Holder:
        pass

    n = 0
    while True:
        n = n % 500 + 1
        holder = Holder()
        holder.t = torch.full((n,), float(n))
        time.sleep(pause)


def listed():
    """``ts[0]`` is (n,) and full of n; the list has n % 7 + 1 tensors."""
    n = 0
    while True:
        n = n % 300 + 1
        ts = [torch.full((n,), float(n)) for _ in range(n % 7 + 1)]
        time.sleep(pause)


def gradient():
    """``t`` requires a gradient and has AddBackward0 and 2 nodes, or is a leaf of (3,)."""
    w = torch.ones(4, requires_grad=True)
    while True:
        t = (w * 2).sum() + 1
        time.sleep(pause)
        t.backward()
        w.grad = None
        t = torch.full((3,), 3.0)
        time.sleep(pause)


def deep_graph():
    """``t`` has MulBackward0 and n multiplications, n of 1 to 9."""
    w, n = torch.ones(2, requires_grad=True), 0
    while True:
        n = n % 9 + 1
        t = w
        for _ in range(n):
            t = t * 2
        time.sleep(pause)


def refilled():
    """``t`` is (n,) and full of n, the same tensor each time."""
    t, n = torch.ones(1), 0
    while True:
        n = n % 200 + 1
        t.set_(torch.full((n,), float(n)))
        time.sleep(pause)


def other_thread():
    """As full(), while another thread does the same with other tensors."""
    threading.Thread(target=full, daemon=True).start()
    full()


def thrown_away():
    """``t`` is (n,) and full of n; between two sleeps a hundred other tensors are made and freed."""
    n = 0
    while True:
        n = n % 100 + 1
        others = [torch.zeros(n + k) for k in range(100)]
        del others
        t = torch.full((n,), float(n))
        time.sleep(pause)


def nested():
    """``t``, in a function that is entered anew each time, is (n,) and full of n."""

    def step(n):
        t = torch.full((n,), float(n))
        time.sleep(pause)
        return t

    n = 0
    while True:
        n = n % 250 + 1
        step(n)


truth.thread("main", waits=None)
truth.ready()
globals()[sys.argv[1].replace("-", "_")]()
