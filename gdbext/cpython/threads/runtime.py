"""One CPython in the target: its version, its interpreters and their thread states.

Structures: _PyRuntimeState (pycore_runtime.h), PyInterpreterState (pycore_interp.h), PyThreadState
(cpython/pystate.h). The layout is proven on the live structures before anything is said.
"""

from __future__ import annotations

from collections.abc import Sequence

from gdbext.cpython.abi import debug_offsets
from gdbext.cpython.abi.find_runtime import (
    RuntimeLocation,
    VersionEvidence,
    evidence,
    find_old_python,
    find_runtimes,
)
from gdbext.cpython.abi.python_layout import PythonLayout, layout_for
from gdbext.cpython.abi.versions import version_text
from gdbext.cpython.objects.code import CodeCache
from gdbext.cpython.objects.dicts import DictReader
from gdbext.cpython.objects.functions import FunctionReader
from gdbext.cpython.objects.objects import ObjectReader
from gdbext.cpython.threads.frame_reader import FrameReader
from gdbext.cpython.threads.thread_state import Interpreter, ThreadState
from gdbext.errors import BadData, GdbextError, MemoryFault, PythonUnsupported
from gdbext.process.memory import Memory
from gdbext.process.modules import Module, ModuleTable
from gdbext.process.symbols import Symbolizer
from gdbext.targets.base import Thread

INTERPRETER_LIMIT = 4096
THREAD_LIMIT = 100_000
"""Most interpreters and thread states that are walked."""


class PythonRuntime:
    """A running CPython: ``version`` is like "3.11.7" ("3.13.5t": free-threaded), ``address`` that of _PyRuntime."""

    def __init__(self, memory: Memory, location: RuntimeLocation, layout: PythonLayout) -> None:
        self.memory = memory
        self.module: Module = location.module
        self.address = location.address
        self.modules: ModuleTable | None = None
        """All modules of the process, where it was found in one."""
        self.layout = layout
        self.version = layout.abi.text
        self.objects = ObjectReader(memory, layout)
        self.dicts = DictReader(self.objects)
        self.codes = CodeCache(self.objects)
        self.functions = FunctionReader(self.objects, self.dicts, self.codes)
        self.frames = FrameReader(memory, layout, self.codes)
        self._states: list[ThreadState] | None = None
        self._known_tids: set[int] | None = None
        self._tids_by_ident: dict[int, int] | None = None

    @classmethod
    def detect(cls, memory: Memory, modules: ModuleTable, symbolizer: Symbolizer) -> PythonRuntime | None:
        """The CPython of this process, None without one.

        Raises PythonUnsupported for one that cannot be read (version, free-threaded build, or structures that
        are not where they should be), LayoutError when the shipped table of its version is missing.
        """
        refusals: list[PythonUnsupported] = []
        idle: PythonRuntime | None = None
        for location in find_runtimes(modules, symbolizer):
            try:
                runtime = cls._at(memory, location, symbolizer)
            except PythonUnsupported as error:
                refusals.append(error)
                continue
            runtime.modules = modules
            if runtime.thread_states():
                return runtime
            idle = idle or runtime
        if refusals:
            raise refusals[0]
        old = find_old_python(modules, symbolizer) if idle is None else None
        if old is not None:
            raise PythonUnsupported(f"{old.path} is a CPython before 3.7")
        return idle

    @classmethod
    def _at(cls, memory: Memory, location: RuntimeLocation, symbolizer: Symbolizer) -> PythonRuntime:
        """The runtime there, in the first version that fits. Raises PythonUnsupported when none does."""
        found = evidence(memory, location, symbolizer)
        problems: list[str] = []
        for abi in found.candidates:
            try:
                layouts = debug_offsets.layouts(memory, location.address, layout_for(abi))
            except MemoryFault as error:
                problems.append(f"{abi.text}: {error}")
                continue
            best = cls._best(memory, location, layouts, found, problems)
            if best is not None:
                return best
        raise PythonUnsupported(
            f"the structures of CPython in {location.module.path} are not where they should be ({'; '.join(problems)})"
        )

    @classmethod
    def _best(
        cls,
        memory: Memory,
        location: RuntimeLocation,
        layouts: Sequence[PythonLayout],
        found: VersionEvidence,
        problems: list[str],
    ) -> PythonRuntime | None:
        """The runtime in the layout that reads best; what is wrong with the others is added to ``problems``."""
        holding = []
        for layout in layouts:
            try:
                runtime = cls._probed(memory, location, layout, found)
            except (BadData, MemoryFault) as error:
                problems.append(f"{layout.abi.text}: {error}")
                continue
            if len(layouts) == 1 or runtime._reads_well():
                return runtime
            holding.append(runtime)
        return holding[0] if holding else None

    @classmethod
    def _probed(
        cls, memory: Memory, location: RuntimeLocation, layout: PythonLayout, found: VersionEvidence
    ) -> PythonRuntime:
        """A runtime with that layout, proven. Raises BadData or MemoryFault where it does not hold."""
        abi = layout.abi
        runtime = cls(memory, location, layout)
        states = runtime.thread_states()
        hexversion = found.hexversion or runtime.sys_hexversion()
        if hexversion is None:
            if states and not found.source:
                raise BadData("its version is not known")
            return runtime
        if not abi.is_of(hexversion):
            raise BadData(f"sys.hexversion is {hexversion:#x}")
        runtime.version = version_text(hexversion) + ("t" if abi.free_threaded else "")
        return runtime

    def _reads_well(self) -> bool:
        """All stacks can be followed to their ends, and every frame has a line."""
        stacks = [self.frames.stack(state) for state in self.thread_states()]
        frames = [frame for stack in stacks for frame in stack.frames]
        return bool(frames) and all(stack.problem is None for stack in stacks) and all(frame.line for frame in frames)

    def interpreters(self) -> list[Interpreter]:
        """All interpreters, newest first; empty before Py_Initialize. Raises BadData, MemoryFault."""
        offset = self.layout.offset
        address = self.memory.u64(self.address + offset("_PyRuntimeState", "interpreters.head"))
        found: list[Interpreter] = []
        seen: set[int] = set()
        while address:
            if address in seen or len(seen) >= INTERPRETER_LIMIT:
                raise BadData("the list of interpreters has no end")
            seen.add(address)
            number = self.memory.i64(address + offset("PyInterpreterState", "id"))
            if not 0 <= number < 1 << 32:
                raise BadData(f"interpreter at {address:#x} has the id {number}")
            found.append(Interpreter(address, number))
            address = self.memory.u64(address + offset("PyInterpreterState", "next"))
        return found

    def thread_states(self) -> list[ThreadState]:
        """All thread states of all interpreters, newest first. Raises BadData, MemoryFault."""
        if self._states is None:
            self._states = [state for interpreter in self.interpreters() for state in self._states_of(interpreter)]
        return self._states

    def _states_of(self, interpreter: Interpreter) -> list[ThreadState]:
        layout, memory = self.layout, self.memory
        address = memory.u64(interpreter.address + layout.offset("PyInterpreterState", layout.abi.first_thread))
        ident_at = layout.offset("PyThreadState", "thread_id")
        native_at = layout.find("PyThreadState", "native_thread_id")
        back_at, next_at = layout.offset("PyThreadState", "interp"), layout.offset("PyThreadState", "next")
        found: list[ThreadState] = []
        seen: set[int] = set()
        while address:
            if address in seen or len(seen) >= THREAD_LIMIT:
                raise BadData(f"the list of thread states of interpreter {interpreter.id} has no end")
            seen.add(address)
            if memory.u64(address + back_at) != interpreter.address:
                raise BadData(f"thread state at {address:#x} does not belong to interpreter {interpreter.id}")
            native = memory.u64(address + native_at) if native_at is not None else 0
            found.append(ThreadState(address, interpreter, memory.u64(address + ident_at), native or None))
            address = memory.u64(address + next_at)
        return found

    def sys_hexversion(self) -> int | None:
        """sys.hexversion of some interpreter, None where it cannot be read (start-up, shutdown)."""
        for interpreter in self.interpreters():
            try:
                sysdict = self.memory.u64(interpreter.address + self.layout.offset("PyInterpreterState", "sysdict"))
                value = self.dicts.get(sysdict, "hexversion") if sysdict else None
                if value is not None:
                    return self.objects.integer(value)
            except (BadData, MemoryFault):
                continue
        return None

    def threads_by_tid(self) -> dict[int, list[ThreadState]]:
        """Kernel thread id (as the target's threads have it) to its thread states, one for each interpreter."""
        table: dict[int, list[ThreadState]] = {}
        for state in self.thread_states():
            tid = self.tid_of(state)
            if tid is not None:
                table.setdefault(tid, []).append(state)
        return table

    def tid_of(self, state: ThreadState) -> int | None:
        """The kernel's id of the thread that owns this state; None if it is not a thread of the target."""
        if self._known_tids is None:
            self._known_tids = {thread.tid for thread in self.memory.target.threads()}
        if state.native_id in self._known_tids:
            return state.native_id
        if self._tids_by_ident is None:
            self._tids_by_ident = _tids_by_pthread(self.memory, self.memory.target.threads())
        return self._tids_by_ident.get(state.ident)

    def state_of_ident(self, ident: int) -> ThreadState | None:
        """The thread state whose threading.get_ident() is ``ident``; None if no such thread lives."""
        return next((state for state in self.thread_states() if state.ident == ident), None)

    def tid_of_ident(self, ident: int) -> int | None:
        """The kernel's id of the thread whose threading.get_ident() is ``ident``; None if there is none."""
        state = self.state_of_ident(ident)
        return self.tid_of(state) if state is not None else None


def _tids_by_pthread(memory: Memory, threads: Sequence[Thread]) -> dict[int, int]:
    """pthread_t to tid."""
    from gdbext.glibc.pthread import pthread_self

    table: dict[int, int] = {}
    for thread in threads:
        try:
            base = memory.architecture.thread_pointer(thread.registers())
        except GdbextError:
            continue
        if base:
            table[pthread_self(memory, base)] = thread.tid
    return table
