"""Functions and classes of ours that LLDB calls at breakpoints and for values.

LLDB looks them up by name in the user's namespace for scripts, which has LLDB's own module. They are members of that
module, and stay there while our commands are loaded anew, so that the namespace is left as it was.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace

import lldb

from gdbext.errors import TargetError

Callback = Callable[[lldb.SBFrame], bool]
"""Called with the innermost frame of the thread at a breakpoint; True if the process is to stop."""

_MEMBER = "callbacks_of_gdbext"
"""The member of LLDB's module that has the callbacks by name."""


def keep_callback(callback: object) -> str:
    """Keep a function or class that LLDB calls; returns the name by which LLDB finds it."""
    members = vars(vars(lldb).setdefault(_MEMBER, SimpleNamespace(count=0)))
    members["count"] += 1  # a name is never used twice
    name = f"at_{members['count']}"
    members[name] = callback
    return f"lldb.{_MEMBER}.{name}"


def drop_callback(name: str) -> None:
    """Forget the callback with the name that ``keep_callback`` returned."""
    vars(vars(lldb)[_MEMBER]).pop(name.rpartition(".")[2], None)


def attach_callback(breakpoint: lldb.SBBreakpoint, callback: Callback) -> str:
    """Have LLDB call the function at each hit; returns its name, for ``drop_callback`` when the breakpoint is deleted.
    Since LLDB 21 the API's lock is held during a call (see read_memory). Raises TargetError."""
    target = breakpoint.GetTarget()
    lock = target.GetAPIMutex() if hasattr(target, "GetAPIMutex") else nullcontext()

    def on_hit(frame: lldb.SBFrame, _location: lldb.SBBreakpointLocation, names: dict[str, object]) -> bool:
        """Called by LLDB with the names of its script session."""
        try:
            with lock:
                return callback(frame) or _must_stop(frame)
        finally:
            # LLDB's wrapper around ours (ScriptInterpreterPython.cpp, GenerateFunction, 16 to 22) copies every name
            # back from its own globals, and fails for one that is not there, such as the wrapper of a breakpoint that
            # the callback has set.
            wrapper_globals = sys._getframe(1).f_globals
            for name in names:
                wrapper_globals.setdefault(name, names[name])

    name = keep_callback(on_hit)
    error = breakpoint.SetScriptCallbackFunction(name)
    if error is not None and error.Fail():
        raise TargetError(f"LLDB rejects the callback: {error.GetCString()}")
    return name


def _must_stop(frame: lldb.SBFrame) -> bool:
    """True if a command waits for the process to stop: LLDB calls us in its main thread then, not in the one that
    handles events. If we resumed the process, LLDB 22 would lose the stop, and "process detach" would never return."""
    members = vars(vars(lldb)[_MEMBER])
    if threading.get_ident() != threading.main_thread().ident:
        members["has_handler"] = True
        return False
    return "has_handler" in members and bool(frame.GetThread().GetProcess().GetTarget().GetDebugger().GetAsync())
