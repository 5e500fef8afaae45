"""Runs inside gdb: writes what gdb and what our unwinder make of the same stop, for test_unwind_vs_gdb.py to compare.

Settings come from the environment: PROBE_OUTPUT (a file, one JSON document per stop and line), PROBE_PIDS (processes to
attach to one after another, with a look at each), PROBE_STEPS (how many instructions to step, with a look before each),
PROBE_SAMPLES (how many times to let it run on for a moment, with a look after each), PROBE_BREAK (run to that function
first), PROBE_CORE (a core to make of it after all that, with a look at it).

Two thirds of the stops of a stepped program are those of a loop in its next rounds: the same instruction, called from
the same ones, with its frames at the same places of the stack. Where that was seen twice, gdb, which takes much longer
than we do, is not asked again: the line has the number of the line that has these frames already.
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


def gdb_frames(registers):
    """gdb's own backtrace of the selected thread, without the frames that exist only in debug information.

    ``registers`` are those of the newest frame.
    """
    frame, frames, names = gdb.newest_frame(), [], COMPARED
    while frame is not None and len(frames) < 200_000:
        if frame.type() not in (gdb.INLINE_FRAME, gdb.TAILCALL_FRAME):
            signal = frame.type() == gdb.SIGTRAMP_FRAME
            values = gdb_registers(frame, names) if frames else registers
            frames.append({"registers": values, "signal": signal, "name": frame.name()})
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


class Looker:
    """Looks at what gdb has stopped, and writes a line of it."""

    def __init__(self, target, stream):
        self.target = target
        self._stream = stream
        self._memory = Memory(target)
        self._unwinder = Unwinder(self._memory, ModuleTable(target, self._memory))
        self._seen = {}
        self._lines = 0

    def look(self):
        """One line: every thread, both ways; or the number of an earlier one."""
        self._memory.forget()
        selected = gdb.selected_thread()
        threads = sorted(gdb.selected_inferior().threads(), key=lambda thread: thread.num)
        ours = [self._ours(thread) for thread in threads]
        places = tuple((each["tid"], each["stopped"], *map(place, each["ours"])) for each in ours)
        lines = self._seen.setdefault(places, [])
        if len(lines) < TIMES:
            lines.append(self._lines)
            self._write([{**each, "gdb": self._theirs(thread, each)} for thread, each in zip(threads, ours)])
        else:
            self._write(lines[0])
        if selected != gdb.selected_thread():
            selected.switch()

    def _ours(self, thread):
        thread.switch()
        registers = gdb_registers(gdb.newest_frame(), GENERAL_REGISTERS)
        frames, stopped = our_frames(self._unwinder, registers)
        return {"tid": thread.ptid[1], "registers": registers, "ours": frames, "stopped": stopped}

    def _theirs(self, thread, ours):
        thread.switch()
        return gdb_frames(ours.pop("registers"))

    def _write(self, line):
        self._stream.write(json.dumps(line) + "\n")
        self._lines += 1


TIMES = 2
"""Stops with the same frames that are looked at both ways."""


def place(frame):
    return frame["registers"].get("rip"), frame["cfa"], frame["how"], frame["signal"]


def look_at(pids, stream):
    """Attach to each of these and look at it."""
    for pid in pids:
        gdb.execute(f"attach {pid}", to_string=True)
        Looker(StoppedByGdb(pid), stream).look()
        gdb.execute("detach", to_string=True)
        gdb.execute("file")  # the next one may run another


def step(looker, steps):
    for _ in range(steps):
        gdb.execute("stepi", to_string=True)
        if not gdb.selected_inferior().threads():
            break
        looker.look()


def look_at_core(path, stream):
    """In an inferior of its own, so that gdb need not read the symbols of the libraries again."""
    gdb.execute(f"gcore {path}", to_string=True)
    gdb.execute("add-inferior -no-connection", to_string=True)
    gdb.execute("inferior 2", to_string=True)
    gdb.execute(f"file {Path(f'/proc/{gdb.inferiors()[0].pid}/exe').resolve()}", to_string=True)
    gdb.execute(f"core-file {path}", to_string=True)
    Looker(CoreTarget(path), stream).look()


def main():
    for option in ("backtrace past-main on", "backtrace past-entry on", "pagination off", "confirm off"):
        gdb.execute(f"set {option}")
    if os.environ.get("PROBE_BREAK"):
        gdb.execute("set breakpoint pending on")
        gdb.Breakpoint(os.environ["PROBE_BREAK"], temporary=True)
        gdb.execute("run")
    with open(os.environ["PROBE_OUTPUT"], "w") as stream:
        if os.environ.get("PROBE_PIDS"):
            look_at([int(pid) for pid in os.environ["PROBE_PIDS"].split()], stream)
            return
        looker = Looker(StoppedByGdb(gdb.selected_inferior().pid), stream)
        looker.look()
        step(looker, int(os.environ.get("PROBE_STEPS", "0")))
        for _ in range(int(os.environ.get("PROBE_SAMPLES", "0"))):
            threading.Timer(0.1, os.kill, (looker.target.pid, signal.SIGINT)).start()
            gdb.execute("continue", to_string=True)
            looker.look()
        if os.environ.get("PROBE_CORE"):
            look_at_core(os.environ["PROBE_CORE"], stream)


main()
