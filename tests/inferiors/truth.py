"""An inferior writes down here what is true of itself, for the tests to compare a report with.

The harness sets GDBEXT_READY to a path. Facts are collected, written to ``path.tmp`` (``stage``) and published by a
rename (``ready``), from Python or, where nobody may take the GIL any more, from native code (``announce`` of
native/locks.cpp). Runs on every Python from 3.8 on and needs nothing but the standard library.
"""

import ctypes
import json
import os
import platform
import signal
import sys
import threading
import time

_lock = threading.Lock()
_facts = {"threads": {}}  # type: dict

FOREVER = 10_000_000  # seconds: sleeps and waits that must not end while the tests look


def _allow_tracers():
    """Let any process of this user attach: the debugger is not our parent (Yama's ptrace_scope 1)."""
    pr_set_ptracer, anybody = 0x59616D61, ctypes.c_ulong(-1)
    ctypes.CDLL(None).prctl(pr_set_ptracer, anybody, 0, 0, 0)


def _die_with_parent():
    """A harness that is killed must leave nobody behind that hangs, or burns a processor, for ever."""
    pr_set_pdeathsig = 1
    if path() is not None:
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL, 0, 0, 0)


def path():
    """Where the truth goes; a program started by hand prints it to standard output instead (None)."""
    return os.environ.get("GDBEXT_READY")


def note(**facts):
    """Add facts. Values must fit into JSON; addresses and keysets are written as hexadecimal text."""
    with _lock:
        _facts.update(facts)


def thread(role, waits="any", **facts):
    """Name the calling thread.

    ``waits``: what the harness waits for before it calls the inferior ready: a system call's name ("futex", "read",
    "poll", "sleep", "wait"), "any" system call that does not change, "running", or None for no check.
    """
    with _lock:
        _facts["threads"][role] = dict(tid=threading.get_native_id(), waits=waits, **facts)


def stage():
    """Write the facts so far next to their place; ``ready`` or native ``announce`` publishes them."""
    _die_with_parent()  # again: a forked child does not inherit it
    with _lock:
        facts = dict(_facts, pid=os.getpid(), python=platform.python_version())
        torch = sys.modules.get("torch")
        facts["torch"] = str(torch.__version__) if torch else None
        text = json.dumps(facts)
    if path() is None:
        print(text, flush=True)
        return
    with open(path() + ".tmp", "w") as out:
        out.write(text)


def ready():
    """Publish the facts: from here on the inferior needs no more than a moment to reach its final state."""
    stage()
    if path() is not None:
        os.rename(path() + ".tmp", path())


def main_ready(waits="any", **facts):
    """Name the calling thread "main", add facts and publish them."""
    thread("main", waits)
    note(**facts)
    ready()


def start(target, name=None, args=()):
    """Run it in a thread of its own, which does not keep the process from ending."""
    begun = threading.Thread(target=target, name=name, args=args, daemon=True)
    begun.start()
    return begun


def go_on_in_child():
    """Fork: the child goes on, and tells; the parent, which a debugger need not look at, waits for it."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        os._exit(0)


def until(condition):
    while not condition():
        time.sleep(0.005)


def is_in(call, other):
    """The thread is in this system call."""
    with open(f"/proc/self/task/{other.native_id}/syscall") as file:
        return file.read().startswith(f"{call} ")


def hexadecimal(number):
    return f"{number:#x}"


def ends(signal_name):
    """The program is about to be killed by that signal: it is looked at in the core that the kernel writes."""
    note(ends=signal_name)


_allow_tracers()
_die_with_parent()
