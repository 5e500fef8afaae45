"""The job that scripts/measure_debuggers.py has debugged, and the debuggers: gdb over its machine interface, LLDB on
its console."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gdbext.engine.targets.live.debugger_guard import foreign_breakpoints
from gdbext.engine.targets.live.proc_checks import thread_states
from support.installed import gdbs, lldbs, probing
from support.programs import harness
from support.programs.debugger_terminal import PipedDebugger
from support.programs.harness import ROOT
from support.programs.mi_session import WELL_FORMED, MiSession

PATIENCE = 40.0
"""Seconds that a job has to be as it was. The kernel takes probes out of code in some seconds on a busy machine."""


class DebuggedJob:
    """tests/inferiors/debugged_job.py, which counts how far each of its threads has come."""

    def __init__(self, loads: bool = False) -> None:
        """``loads``: one thread loads a library again and again."""
        self._inferior = harness.start("debugged_job", *(["loads"] if loads else []))
        self.pid = self._inferior.pid
        self._counts = Path(self._inferior.truth["counts"])
        self.is_well = True
        """No harm was found in it."""

    def counts(self) -> list[int]:
        """Additions, multiplications, loads, and how many loads are asked for."""
        data = self._counts.read_bytes()
        return [int.from_bytes(data[at : at + 8], "little") for at in range(0, 32, 8)]

    def runs_by(self, session: GdbSession | LldbSession, command: str) -> None:
        """Begin a command, and wait until it lets the job run."""
        before = self.counts()
        session.send_console(command)
        harness.wait_until(lambda: self.counts() != before, "the process runs")

    def harm(self) -> tuple[str, float]:
        """The harm that was done to it, "" for none; and the seconds until all was as before."""
        begin = time.monotonic()
        while (said := self._harm()) and not said.startswith("ended") and time.monotonic() < begin + PATIENCE:
            time.sleep(0.1)
        self.is_well = not said
        return said, time.monotonic() - begin

    def _harm(self) -> str:
        """What is not as it was, at this moment."""
        if self._inferior.process.poll() is not None:
            return f"ended with status {self._inferior.process.returncode}"
        state = thread_states(self.pid).get(self.pid, "gone")
        if state in "Tt":
            return f"is in state {state}"
        if probing.links_on(self.pid):
            return "has probes"
        try:
            places = foreign_breakpoints(self.pid)
        except (ProcessLookupError, FileNotFoundError):
            return "is ending"
        if places:
            return f"has foreign instructions at {', '.join(map(hex, places[:5]))}"
        return self._is_held_up()

    def _is_held_up(self) -> str:
        """Whether all threads go on, and a library can be loaded."""
        before = self.counts()
        with self._counts.open("r+b") as file:
            file.seek(24)
            file.write((before[2] + 1).to_bytes(8, "little"))
        end = time.monotonic() + 2
        while time.monotonic() < end:
            if all(now > then for now, then in zip(self.counts()[:3], before)):
                return ""
            time.sleep(0.02)
        return f"does not go on: {before} became {self.counts()}"

    def close(self) -> None:
        """End it."""
        if self._inferior.process.poll() is None:
            self._inferior.process.kill()
        self._inferior.close()


class GdbSession(MiSession):
    """gdb over MI."""

    def run(self, command: str, seconds: float = 120) -> list[str]:
        """The lines until the console's command is over."""
        return self.console(command, seconds)

    def send_console(self, command: str) -> None:
        """Have it begin a command of the console."""
        self.send(f'-interpreter-exec console "{command}"\n')

    def result_of(self, command: str) -> str:
        """The class of the result of a command of the console."""
        return self.result(self.console(command))

    def malformed(self) -> list[str]:
        """All lines that are none of MI."""
        return [line for line in self.lines if line and not WELL_FORMED.fullmatch(line)]


_QUICK = (
    "plugin disable instrumentation-runtime",
    f"settings set symbols.lldb-index-cache-path {Path.home()}/.cache/gdbext-tests/lldb-index",
    "settings set symbols.enable-lldb-index-cache true",
)
"""Makes LLDB attach in a third of the time (hosts/lldb/lldb_debugger.py); LLDB 19 and earlier lack the first."""


class LldbSession(PipedDebugger):
    """LLDB, which reads its commands from a pipe."""

    def __init__(self, lldb: str) -> None:
        words = [lldb, "--no-lldbinit", "-O", "settings set target.preload-symbols false"]
        super().__init__(words, subprocess.STDOUT)
        self._said = b""
        self._marks = 0
        for each in _QUICK:
            self.run(each)

    def send_console(self, command: str) -> None:
        """Have it begin a command."""
        self.write(f"{command}\n".encode())

    def run(self, command: str, seconds: float = 120) -> list[str]:
        """The lines until a command is over."""
        self._marks += 1
        self.send_console(command)
        self.send_console(f"script print('over', {self._marks}, 'over')")
        first, end, mark = len(self._said), time.monotonic() + seconds, f"over {self._marks} over".encode()
        while mark not in self._said[first:]:
            left = end - time.monotonic()
            assert left > 0, f"{command} did not end in {seconds} s: {self._said[first:][-2000:]!r}"
            self._said += self.read(left)
        return self._said[first:].decode(errors="replace").splitlines()


class Debugger:
    """One of this machine's debuggers."""

    def __init__(self, path: str, is_gdb: bool) -> None:
        self.path = path
        self.kind = "gdb" if is_gdb else "lldb"
        """The name that --debugger takes."""
        self.has_machine_interface = is_gdb
        self.settings = "show" if is_gdb else "settings show"
        """The command that shows all settings."""

    def script(self, path: Path) -> str:
        """The command that runs a Python program."""
        if self.has_machine_interface:
            return f"source {path}"
        return f"script exec(open({str(path)!r}).read(), {{'lldb': lldb}})"

    @contextmanager
    def attached(self, pid: int) -> Iterator[GdbSession | LldbSession]:
        """It, with our commands, attached to a process; it lets that go at the end, where it lives."""
        session: GdbSession | LldbSession
        if self.has_machine_interface:
            session = GdbSession(self.path, f"{ROOT}/gdbext/init.py")
            session.command(f"-target-attach {pid}")
        else:
            session = LldbSession(self.path)
            session.run(f"process attach -p {pid}")
            session.run(f"command script import {ROOT}/gdbext/lldb_init.py")
        try:
            yield session
            if session.process.poll() is None:
                session.run("detach" if self.has_machine_interface else "process detach")
        finally:
            session.close()


def debuggers() -> dict[str, Debugger]:
    """Name → debugger, of all that work here."""
    found = {name: Debugger(path, True) for name, path in gdbs.usable().items()}
    return found | {name: Debugger(path, False) for name, path in lldbs.every().items()}
