"""Runs inside gdb: writes what gdb and what our unwinder make of the same stop, for test_unwind_vs_gdb.py to compare.

Settings come from the environment: PROBE_OUTPUT (a file, one JSON document per stop and line), PROBE_STEPS (how many
instructions to step, with a look before each), PROBE_SAMPLES (how many times to let it run on for a moment, with a look
after each), PROBE_BREAK (run to that function first), PROBE_CORE (a core's path).
"""

import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path

import gdb

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from gdbext.engine.arch.architectures import by_name
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.targets.system.linux import parse_maps
from gdbext.engine.unwind import Unwinder
from gdbext.errors import MemoryFault

ARCHITECTURE = by_name("x86_64")
GENERAL_REGISTERS = ARCHITECTURE.general_registers
COMPARED = ("rip", "rsp", "rbp", "rbx", "r12", "r13", "r14", "r15")


class StoppedByGdb(Target):
    """A process that gdb holds: memory and maps from /proc. Only what the unwinder needs."""

    kind = "live"
    debugger = "gdb"

    def __init__(self, pid):
        self.architecture = ARCHITECTURE
        self.pid = pid
        self._memory = os.open(f"/proc/{pid}/mem", os.O_RDONLY)

    def read(self, address, size):
        try:
            data = os.pread(self._memory, size, address)
        except (OSError, OverflowError) as error:
            raise MemoryFault(address, size, str(error)) from None
        if len(data) != size:
            raise MemoryFault(address, size)
        return data

    def maps(self):
        return parse_maps(Path(f"/proc/{self.pid}/maps").read_text())

    def threads(self):
        return []

    def selected_thread(self):
        return None

    def auxv(self):
        return {}

    def local_path(self, path):
        return path


def gdb_registers(frame, names):
    """Name to value as gdb sees it in that frame; what it does not know is left out."""
    found = {}
    for name in names:
        with contextlib.suppress(gdb.error, ValueError):
            found[name] = int(frame.read_register(name)) & (1 << 64) - 1
    return found


def gdb_frames():
    """gdb's own backtrace of the selected thread, without the frames that exist only in debug information."""
    frame, frames, names = gdb.newest_frame(), [], GENERAL_REGISTERS
    while frame is not None and len(frames) < 200_000:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            signal = frame.type() == gdb.SIGTRAMP_FRAME
            frames.append({"registers": gdb_registers(frame, names), "signal": signal, "name": frame.name()})
            names = GENERAL_REGISTERS if signal else COMPARED
        try:
            frame = frame.older()
        except gdb.error as error:
            frames.append({"error": str(error)})
            break
    return frames


def our_frames(unwinder, registers):
    frames = [
        {
            "registers": frame.registers,
            "signal": frame.is_signal,
            "cfa": frame.cfa,
            "how": frame.how,
            "module": frame.module.name if frame.module else None,
        }
        for frame in unwinder.frames(registers, 200_000)
    ]
    return frames, unwinder.stopped


def look(memory, unwinder, stream):
    """One line: every thread, both ways."""
    memory.forget()
    selected = gdb.selected_thread()
    threads = []
    for thread in sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num):
        thread.switch()
        theirs = gdb_frames()
        ours, stopped = our_frames(unwinder, theirs[0]["registers"])
        threads.append({"tid": thread.ptid[1], "gdb": theirs, "ours": ours, "stopped": stopped})
    selected.switch()
    stream.write(json.dumps(threads) + "\n")


def main():
    gdb.execute("set backtrace past-main on")
    gdb.execute("set backtrace past-entry on")
    gdb.execute("set pagination off")
    if os.environ.get("PROBE_BREAK"):
        gdb.execute("set breakpoint pending on")
        gdb.Breakpoint(os.environ["PROBE_BREAK"], temporary=True)
        gdb.execute("run")
    core = os.environ.get("PROBE_CORE")
    target = CoreTarget(core) if core else StoppedByGdb(gdb.selected_inferior().pid)
    memory = Memory(target)
    modules = ModuleTable(target, memory)
    unwinder = Unwinder(memory, modules)
    with open(os.environ["PROBE_OUTPUT"], "w") as stream:
        look(memory, unwinder, stream)
        for _ in range(int(os.environ.get("PROBE_STEPS", "0"))):
            gdb.execute("stepi", to_string=True)
            if not gdb.selected_inferior().threads():
                break
            look(memory, unwinder, stream)
        for _ in range(int(os.environ.get("PROBE_SAMPLES", "0"))):
            threading.Timer(0.1, os.kill, (target.pid, signal.SIGINT)).start()
            gdb.execute("continue", to_string=True)
            look(memory, unwinder, stream)


main()
