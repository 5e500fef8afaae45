"""One CPython in the target: its version, its interpreters, its threads by their kernel ids, with states and names.

Structures: _PyRuntimeState (pycore_runtime.h), PyInterpreterState (pycore_interp.h), PyThreadState
(cpython/pystate.h). The layout is proven on the live structures before anything is said.

Names of threads are those of ``threading``: threading._active maps idents to Thread objects.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from gdbext.cpython.abi import assumed_names, python_layout, versions
from gdbext.cpython.abi.python_layout import PythonLayout, layout_for
from gdbext.cpython.abi.python_structures import PyInterpreterState, PyModuleObject, PyRuntimeState, PyThreadState
from gdbext.cpython.objects.object_items import context_variables
from gdbext.cpython.objects.py_ref import PyItems, PyRef, integer
from gdbext.cpython.objects.py_space import PySpace, once
from gdbext.cpython.threads.frame_reader import FrameReader, Interpreter, ThreadState
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.engine.glibc.pthread import PthreadTids
from gdbext.errors import BadData, GdbextError, MemoryFault, PythonUnsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
    from typing import NoReturn, TypeVar

    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.process.symbolizer import Symbolizer

    _T = TypeVar("_T")
    NoteError = Callable[[GdbextError, str], None]  # called with an error, and the part of the report that lacks for it


class TornListError(BadData):
    """A list of the interpreter is inconsistent though its layout is right: it changed while it was read."""


class PythonRuntime(PySpace):
    """A running CPython: ``version`` is like "3.11.7" ("3.13.5t": free-threaded), ``address`` that of _PyRuntime."""

    def __init__(self, memory: Memory, location: versions.RuntimeLocation, layout: PythonLayout) -> None:
        super().__init__(memory, layout)
        self._location = location
        self.module: Module = location.module
        self.address = location.address
        self.modules: ModuleTable | None = None  # of the process; None if that is not known
        self.version = layout.abi.text
        self.frames = FrameReader(memory, layout, self.codes)

    def anew(self) -> PythonRuntime:
        """A new reader of this interpreter, which only takes over the code objects that were read."""
        other = PythonRuntime(self.memory, self._location, self.layout)
        other.version, other.modules = self.version, self.modules
        other.frames = FrameReader(self.memory, self.layout, self.codes)
        return other

    def stack_of(self, states: Iterable[ThreadState]) -> PyStack:
        """The Python frames of a thread, innermost first, interpreter by interpreter."""
        return PyStack(self, [frame for state in states for frame in self.frames.stack(state).frames])

    @once
    def globals_of(self, module: str) -> PyRef:
        """The dict of an imported module's globals, in the newest interpreter that has the module; else missing."""
        missing = PyRef(self, 0)
        try:
            for interpreter in self.interpreters():
                namespace = self.globals_in(interpreter, module)
                if namespace:
                    return namespace
                missing = missing if namespace.is_absent else namespace
        except GdbextError as error:
            return PyRef(self, 0, error)
        return missing

    def globals_in(self, interpreter: Interpreter, module: str) -> PyRef:
        """The dict of a module's globals in one interpreter; missing if the module is not imported there."""

        def namespace(_: PySpace, address: int) -> int:
            """Address of the module's dict, by sys.modules of the interpreter at ``address``; 0 for none."""
            modules = PyInterpreterState(self.space, address).value(self.layout.abi.modules)
            imported = self.dicts.get(modules, module) if modules else 0
            return PyModuleObject(self.space, imported).md_dict if imported else 0

        return PyRef(self, interpreter.address).at(namespace)

    def context_of(self, state: ThreadState) -> PyItems[tuple[PyRef, PyRef]]:
        """The context variables of a thread with their values."""

        def read_context(_: PySpace, address: int) -> list[tuple[PyRef, PyRef]]:
            pairs = context_variables(self, address).items()
            return [(PyRef(self, key), PyRef(self, value)) for key, value in pairs]

        return PyItems(PyRef(self, state.address), read_context)

    @classmethod
    def detect(cls, memory: Memory, modules: ModuleTable, symbolizer: Symbolizer) -> PythonRuntime:
        """The CPython of this process, NO_PYTHON without one. Raises PythonUnsupported for a version or layout that
        cannot be read, LayoutError if the shipped table of its version is missing."""
        refusals: list[PythonUnsupported] = []
        idle: PythonRuntime = NO_PYTHON
        for location in versions.find_runtimes(modules, symbolizer):
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
        old = None if idle else versions.find_old_python(modules, symbolizer)
        if old:
            raise versions.unsupported(f"{old.path} is CPython 3.6 or older")
        return idle

    @classmethod
    def _at(cls, memory: Memory, location: versions.RuntimeLocation, symbolizer: Symbolizer) -> PythonRuntime:
        """The runtime there, in the first version and layout that fit. Raises PythonUnsupported when none does."""
        version_evidence = versions.evidence(memory, location, symbolizer)
        problems: list[str] = []
        for abi in version_evidence.candidates:
            try:
                layouts = python_layout.layouts(memory, location.address, layout_for(abi, memory.architecture.name))
            except MemoryFault as error:
                problems.append(f"{abi.text}: {error}")
                continue
            fitting = []
            for layout in layouts:
                try:
                    runtime = cls._proven(memory, location, layout, version_evidence)
                except TornListError:
                    raise
                except (BadData, MemoryFault) as error:
                    problems.append(f"{abi.text}: {error}")
                    continue
                if len(layouts) == 1 or runtime._has_readable_stacks():
                    return runtime
                fitting.append(runtime)
            if fitting:
                return fitting[0]
        raise versions.unsupported(
            f"the structures of CPython in {location.module.path} match no known layout ({'; '.join(problems)})"
        )

    @classmethod
    def _proven(
        cls, memory: Memory, location: versions.RuntimeLocation, layout: PythonLayout, known: versions.VersionEvidence
    ) -> PythonRuntime:
        """A runtime with that layout, proven by its lists and its version. Raises BadData or MemoryFault if the layout
        is wrong, TornListError if it is right and the list of threads is inconsistent."""
        runtime = cls(memory, location, layout)
        states = runtime._states_unless_torn()
        hexversion = known.hexversion or runtime.sys_hexversion()
        if hexversion is None:
            if states and not known.source:
                raise BadData("its version is unknown")
            return runtime
        if not layout.abi.has_version(hexversion):
            raise BadData(f"sys.hexversion is {hexversion:#x}")
        runtime.version = versions.version_text(hexversion) + ("t" if layout.abi.free_threaded else "")
        return runtime

    def _has_readable_stacks(self) -> bool:
        """True if all stacks can be followed to their ends and every frame has a line, as with the right layout."""
        stacks = [self.frames.stack(state) for state in self.thread_states()]
        frames = [frame for stack in stacks for frame in stack.frames]
        return bool(frames) and all(stack.problem is None for stack in stacks) and all(frame.line for frame in frames)

    def interpreters(self) -> list[Interpreter]:
        """All interpreters, newest first; empty before Py_Initialize. Raises BadData, MemoryFault."""
        address = PyRuntimeState(self.space, self.address).interpreters_head
        interpreters: dict[int, Interpreter] = {}
        while address:
            if address in interpreters or len(interpreters) >= 4096:
                raise BadData("the list of interpreters does not end")
            state = PyInterpreterState(self.space, address)
            number = state.id
            if not 0 <= number < 1 << 32:
                raise BadData(f"interpreter at {address:#x} has an implausible id: {number}")
            interpreters[address] = Interpreter(address, number)
            address = state.next
        return list(interpreters.values())

    @once
    def thread_states(self) -> list[ThreadState]:
        """All thread states of all interpreters, newest first. Raises BadData, MemoryFault."""
        return [state for interpreter in self.interpreters() for state in self._states_of(interpreter)]

    def _states_unless_torn(self) -> list[ThreadState]:
        """All thread states. Raises BadData, MemoryFault; TornListError if sys.hexversion proves the layout right."""
        try:
            return self.thread_states()
        except (BadData, MemoryFault) as error:
            hexversion = 0
            with suppress(GdbextError):
                hexversion = self.sys_hexversion() or 0
            if self.layout.abi.has_version(hexversion):
                raise TornListError(f"{error}: the list changed while it was read") from error
            raise

    def _states_of(self, interpreter: Interpreter) -> Iterable[ThreadState]:
        """The thread states of an interpreter, newest first. Raises BadData, MemoryFault."""
        address = PyInterpreterState(self.space, interpreter.address).value(self.layout.abi.first_thread)
        has_native = PyThreadState.native_thread_id.is_in(self.layout)
        states: dict[int, ThreadState] = {}
        while address:
            if address in states or len(states) >= 100_000:
                raise BadData(f"the list of thread states of interpreter {interpreter.id} does not end")
            state = PyThreadState(self.space, address)
            if state.interp != interpreter.address:
                raise BadData(f"thread state at {address:#x} does not belong to interpreter {interpreter.id}")
            native = state.native_thread_id if has_native else 0
            states[address] = ThreadState(address, interpreter, state.thread_id, native or None)
            address = state.next
        return states.values()

    def sys_hexversion(self) -> int | None:
        """sys.hexversion of some interpreter, None if it cannot be read (start-up, shutdown)."""
        for interpreter in self.interpreters():
            with suppress(BadData, MemoryFault):
                sysdict = PyInterpreterState(self.space, interpreter.address).sysdict
                value = self.dicts.get(sysdict, "hexversion") if sysdict else 0
                if value:
                    return self.objects.integer(value)
        return None

    def threads_by_tid(self) -> dict[int, list[ThreadState]]:
        """Tid → the thread states of that thread, one for each interpreter that it has run in."""
        table: dict[int, list[ThreadState]] = {}
        for state in self.thread_states():
            tid = self.tid_of(state)
            if tid:
                table.setdefault(tid, []).append(state)
        return table

    def tid_of(self, state: ThreadState) -> int | None:
        """The tid of the thread that owns this state; None if the target has no such thread."""
        return state.native_id if state.native_id in self._tids else self.pthreads.tids.get(state.ident)

    @cached_property
    def _tids(self) -> set[int]:
        return {thread.tid for thread in self.memory.target.memory.threads()}

    @cached_property
    def pthreads(self) -> PthreadTids:
        """The threads of the target by their pthread_t, which is what threading.get_ident() gives."""
        return PthreadTids.read(self.memory, self.memory.target.memory.threads())

    def proven_tid(self, state: ThreadState) -> int | None:
        """``tid_of`` the state; None if its two ids belong to different threads: one is damaged."""
        tid, by_ident = self.tid_of(state), self.pthreads.tids.get(state.ident)
        return tid if by_ident in (None, tid) else None

    def state_of_ident(self, ident: int) -> ThreadState | None:
        """The thread state whose threading.get_ident() is ``ident``; None if no such thread lives."""
        return self._states_by_ident().get(ident)

    @once
    def _states_by_ident(self) -> Mapping[int, ThreadState]:
        return {state.ident: state for state in reversed(self.thread_states())}

    @once
    def tid_of_ident(self, ident: int) -> int | None:
        """The tid of the thread whose threading.get_ident() is ``ident``; None if it is not known."""
        state = self.state_of_ident(ident)
        return self.proven_tid(state) if state else self.pthreads.tids.get(ident)

    def has_no_thread(self, ident: int) -> bool:
        """True if certainly no thread has that threading.get_ident(): every pthread_t was read, and the list of thread
        states to its end. Raises BadData, MemoryFault."""
        self.thread_states()
        return self.pthreads.complete and ident not in self.pthreads.tids


class _NoPython(PythonRuntime):
    """The class of NO_PYTHON."""

    def __init__(self) -> None:
        self.version = ""

    def __bool__(self) -> bool:
        return False

    def __getattr__(self, name: str) -> NoReturn:
        raise BadData("there is no Python in this process that can be read")

    def once(self, find: Callable[..., _T], *args: Hashable) -> _T:
        return find(self, *args)

    def interpreters(self) -> list[Interpreter]:
        return []

    def thread_states(self) -> list[ThreadState]:
        return []

    def tid_of_ident(self, ident: int) -> int | None:  # noqa: ARG002
        return None

    def has_no_thread(self, ident: int) -> bool:  # noqa: ARG002
        return False


NO_PYTHON = _NoPython()
"""Stands for the interpreter of a process without Python, or with one that cannot be read: falsy, without threads and
modules, and to read its memory raises BadData."""


def read_thread_names(runtime: PythonRuntime) -> dict[int, str]:
    """threading.get_ident() of a thread → its name, in the main interpreter or else in the oldest one: a thread that
    imports ``threading`` in another interpreter is the "MainThread" there. Raises nothing."""
    names: dict[int, str] = {}
    for ident, thread in active_threads(runtime):
        with suppress(GdbextError):
            name = thread.var(assumed_names.THREAD_NAME).read(lambda python, at: python.objects.text(at, 256))
            names.setdefault(ident.read(integer), name)
    return names


@once
def active_threads(runtime: PythonRuntime) -> Sequence[tuple[PyRef, PyRef]]:
    """(ident, Thread) of threading._active, the main interpreter's first. Raises nothing."""
    tables = module_globals(runtime, assumed_names.THREADING, assumed_names.ACTIVE_THREADS)
    return [thread for table in tables for thread in table.items()]


def module_globals(runtime: PythonRuntime, module: str, name: str) -> Iterator[PyRef]:
    """That variable of an imported module in each interpreter, the main one first. Raises nothing."""
    try:
        interpreters = runtime.interpreters()
    except (BadData, MemoryFault):
        return
    values = (runtime.globals_in(interpreter, module)[name] for interpreter in reversed(interpreters))
    yield from filter(None, values)


class ThreadTable:
    """The threads of one runtime, by tid; empty for NO_PYTHON, and if they cannot be read, which is noted once."""

    def __init__(self, runtime: PythonRuntime, note: NoteError) -> None:
        self.runtime = runtime
        self._note = note

    @cached_property
    def states(self) -> Mapping[int, Sequence[ThreadState]]:
        """Kernel thread id → its Python thread states, one for each interpreter."""
        try:
            return self.runtime.threads_by_tid()
        except GdbextError as error:
            self._note(error, "python threads")
            return {}

    def frames(self, tid: int) -> PyStack:
        """The Python frames of a thread, innermost first, interpreter by interpreter; none if it runs no Python."""
        return self.runtime.stack_of(self.states.get(tid, ()))

    @cached_property
    def names(self) -> Mapping[int, str]:
        """Kernel thread id → the name of its ``threading.Thread``."""
        try:
            names = read_thread_names(self.runtime)
        except GdbextError as error:
            self._note(error, "python thread names")
            return {}
        states = ((tid, state) for tid, own_states in self.states.items() for state in own_states)
        return {tid: names[state.ident] for tid, state in states if state.ident in names}
