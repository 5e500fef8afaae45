"""Functions and classes of ours that LLDB calls at breakpoints and for values.

LLDB takes them by name, which it looks up in the user's namespace for scripts. That namespace is to stay as it is, and
has LLDB's own module: so they are kept in there, also while our commands are loaded anew.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import lldb

from gdbext.errors import TargetError

Callback = Callable[[lldb.SBFrame], bool]
"""Called with the innermost frame of the thread that got there; True where the process is to stop."""

_KEPT = "callbacks_of_gdbext"


def keep(what: object) -> str:
    """The name by which LLDB finds it."""
    kept = vars(vars(lldb).setdefault(_KEPT, SimpleNamespace(count=0)))
    kept["count"] += 1  # a name is never used twice
    name = f"at_{kept['count']}"
    kept[name] = what
    return f"lldb.{_KEPT}.{name}"


def drop(name: str) -> None:
    """Forget what LLDB calls no more; ``name`` is what ``keep`` gave."""
    vars(vars(lldb)[_KEPT]).pop(name.rpartition(".")[2], None)


def attach(breakpoint: lldb.SBBreakpoint, callback: Callback) -> str:
    """Call the function at each hit; gives the name to ``drop`` when the breakpoint is gone. Raises TargetError."""

    def called(frame: lldb.SBFrame, _location: lldb.SBBreakpointLocation, names: dict[str, object]) -> bool:
        try:
            return callback(frame)
        finally:
            _admit(names, sys._getframe(1).f_globals)

    name = keep(called)
    error = breakpoint.SetScriptCallbackFunction(name)
    if error is not None and error.Fail():
        raise TargetError(f"LLDB takes no callback: {error.GetCString()}")
    return name


def _admit(names: dict[str, object], others: dict[str, object]) -> None:
    """Admit the wrapper of another such breakpoint, which a callback has set and which is new in ``names``.

    The wrapper that LLDB has made around ours (ScriptInterpreterPython.cpp, GenerateFunction, 16 to 22) copies every
    name back from its own globals, and fails for one that is not there.
    """
    for name in names:
        others.setdefault(name, names[name])
