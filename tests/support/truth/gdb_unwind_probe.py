"""Runs inside gdb: writes gdb's backtraces of the threads of each process of PROBE_PIDS into the file PROBE_OUTPUT."""

import contextlib
import json
import os
from pathlib import Path

import gdb

COMPARED = ("rip", "rsp", "rbp", "rbx", "r12", "r13", "r14", "r15")


def registers(frame):
    """Name to value as gdb sees it in that frame; what it does not know is left out."""
    found = {}
    for name in COMPARED:
        with contextlib.suppress(gdb.error, ValueError):
            found[name] = int(frame.read_register(name)) & (1 << 64) - 1
    return found


def backtrace():
    """Of the selected thread, without the frames that exist only in debug information."""
    frame, frames = gdb.newest_frame(), []
    while frame is not None:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            is_signal = frame.type() == gdb.SIGTRAMP_FRAME
            frames.append({"registers": registers(frame), "signal": is_signal, "name": frame.name()})
        frame = frame.older()
    return frames


def threads(pid):
    """Thread id to backtrace."""
    gdb.execute(f"attach {pid}", to_string=True)
    found = {}
    for thread in gdb.selected_inferior().threads():
        thread.switch()
        found[thread.ptid[1]] = backtrace()
    gdb.execute("detach", to_string=True)
    gdb.execute("file")  # the next one may run another
    return found


for option in ("backtrace past-main on", "backtrace past-entry on", "pagination off", "confirm off"):
    gdb.execute(f"set {option}")
Path(os.environ["PROBE_OUTPUT"]).write_text(json.dumps([threads(pid) for pid in os.environ["PROBE_PIDS"].split()]))
