"""The event loops of one process: asyncio's, the runners of trio and the greenlets, and what their tasks wait for.

trio (0.22 to 0.35, trio/_core/{_run,_traps}.py): ``run``, and ``unrolled_run`` while a task runs, have the runner in a
variable. The runner has all tasks, those that are due (``runq``) and the deadlines. A task that waits is suspended
below ``wait_task_rescheduled``; the function above it shows what for.

Greenlets (greenlet 2.0 to 3.5, TGreenlet.hpp, TPythonState.cpp; gevent 22 to 26; eventlet 0.33 to 0.41): one that is
switched out keeps its innermost frame, and the part of the stack that others use meanwhile. Objects of gevent list the
``switch`` of those that wait for them; those of eventlet are ``self`` in Python's frames.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.objects import base_classes
from gdbext.cpython.objects.object_items import deque_items
from gdbext.cpython.objects.py_ref import PyRef, PyVariables, size_of_deque
from gdbext.cpython.sync.held_locks import entered_in
from gdbext.cpython.tasks import loops as asyncio_loops
from gdbext.cpython.tasks.awaited import TRIO, Awaitable, Awaited, awaited_by, task_members, trio_awaited
from gdbext.cpython.tasks.loops import RunningLoop, RunningTask
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.frame_variables import PyStack
from gdbext.cpython.threads.garbage_collector import collected_objects
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

_TRAPS = "/trio/_core/_traps.py"
_WORDS = 64  # most words of an object that are read
_LONGEST_NAME = 128


class LoopReader:
    """Reads all loops once, and the objects that their tasks wait for."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self._runtime = runtime

    @cached_property
    def loops(self) -> Sequence[RunningLoop]:
        return [*asyncio_loops.read_loops(self._runtime), *trio_loops(self._runtime), *greenlet_loops(self._runtime)]

    def awaited(self, loop: RunningLoop, task: RunningTask) -> Awaited:
        """The object that a task of a loop waits for."""
        if loop.kind.startswith(TRIO):
            return trio_awaited(self._runtime, task)
        return (greenlet_awaited if loop.kind == GREENLET else awaited_by)(self._runtime, task)

    def owing(self, future: PyRef) -> RunningLoop | None:
        """The only loop that can complete a concurrent.futures.Future; None if it needs none."""
        loops = (loop for loop in self.loops if loop.ident)
        return next((loop for loop in loops if asyncio_loops.owes(self._runtime, loop, future)), None)


def trio_loops(runtime: PythonRuntime) -> list[RunningLoop]:
    """The runners of trio in all threads that can be read. Raises nothing."""
    loops = []
    with suppress(GdbextError):
        for state in runtime.thread_states():
            stack = runtime.stack_of([state])
            runs = (("_run.py", "run"), ("_run.py", "unrolled_run"))
            frame = next((frame for frame in stack if "/trio/_core/" in frame.file and frame.call in runs), None)
            runner = stack.locals(frame)["runner"] if frame else None
            if runner:
                loops.append(_trio_loop(runtime, state, stack, runner))
    return loops


def _trio_loop(runtime: PythonRuntime, state: ThreadState, frames: Sequence[PythonFrame], runner: PyRef) -> RunningLoop:
    """The loop of trio's Runner object ``runner``, which the thread of ``state`` runs; ``frames``: of that thread."""
    own = runner.attributes()
    addresses = {frame.address for frame in frames}
    members = (_trio_task(runtime, member, runner, addresses) for member in task_members(own["tasks"]))
    # without the tasks of trio's own
    tasks = [task for task in members if task and (not task.outer or "/trio/_core/" not in task.outer.file)]
    current = [task.address for task in tasks if task.outer and task.outer.address in addresses]
    # Only the process itself can wake the loop if there is no deadline, and the one fd that it watches is the one of
    # ``TrioToken.run_sync_soon``.
    watched = own["io_manager"].attributes()["_registered"].keys()
    has_no_deadline = own["deadlines"].attributes()["_active"].int() == 0
    return RunningLoop(
        runner.address,
        f"{TRIO}.run",
        state.ident,
        own["runq"].address,
        own["runq"].read_or(size_of_deque, None),
        current[-1] if current else 0,
        tuple(tasks),
        has_no_deadline and not watched.fault and len(watched) == 1,
    )


def _trio_task(runtime: PythonRuntime, task: PyRef, runner: PyRef, stack: set[int]) -> RunningTask | None:
    """The record of trio's Task object ``task``, None if it is done. ``runner``: its Runner; ``stack``: addresses of
    the Python frames of the runner's thread."""
    own = task.attributes()
    coroutine = own["coro"].address
    outer = asyncio_loops.running_frame(runtime, coroutine) if coroutine else None
    if not outer:
        return None
    is_suspended = outer.address not in stack
    chain = asyncio_loops.coroutine_chain(runtime, coroutine)[0] if is_suspended else []
    frames = tuple(frame for frame in chain if not frame.file.endswith(_TRAPS))
    is_scheduled = own["_next_send_fn"].type not in ("", "NoneType")
    variables = PyStack(runtime).locals(frames[0]) if frames else PyVariables(runtime)
    waiter = task.address if frames and not is_scheduled else 0
    name = own["name"].str(_LONGEST_NAME)
    entered = entered_in(runtime, frames)
    return RunningTask(task.address, name, runner.address, frames, waiter, 0, variables, entered, outer)


GREENLET = "greenlet"
_OBJECTS = 400_000
_PIMPL, _SELF = 32, 8
"""Offset of ``pimpl`` in a PyGreenlet (greenlet.h of 2.0 to 3.5), and of the pointer back in the C++ object that it
points to (TGreenlet.hpp)."""
_STATE_WORDS = 24
_STACK = 6
"""Words from the StackState (start, stop, copy, saved, previous) of a greenlet to its frame (TGreenlet.hpp)."""
_LIBRARIES = (*assumed_names.GREENLET_HUBS, "/greenlet/", "/gunicorn/workers/ggevent.py")
_LINK_SELF = 24
"""m_self of a built-in method (PyCFunctionObject, Include/cpython/methodobject.h), im_self of any other
(PyMethodObject, Include/cpython/classobject.h)."""
_LINKS = 256
_TIMERS = ("Timer", "LocalTimer")
"""Classes of eventlet's hubs; those that are written in Python have their names without the module's."""
_LOWEST = 1 << 16
_KINDS = (
    ("Semaphore", Awaitable.SEMAPHORE),
    ("RLock", Awaitable.SEMAPHORE),
    ("Event", Awaitable.EVENT),
    ("LockType", Awaitable.LOCK),
    ("AsyncResult", Awaitable.EVENT),
    ("Queue", Awaitable.QUEUE),
    ("Condition", Awaitable.CONDITION),
)


def has_greenlets(runtime: PythonRuntime) -> bool:
    """True if the greenlet extension is loaded and a hub is on a stack: only then all objects are searched."""
    modules = runtime.modules.modules if runtime.modules else ()
    if not any(module.name.startswith("_greenlet.") for module in modules):
        return False
    files = {frame.file for state in runtime.thread_states() for frame in runtime.frames.stack(state).frames}
    return any(hub in file for file in files for hub in assumed_names.GREENLET_HUBS)


def greenlet_loops(runtime: PythonRuntime) -> list[RunningLoop]:
    """A loop for each thread of gevent or eventlet, with its suspended greenlets as tasks. Raises nothing."""
    try:
        return list(_Greenlets(runtime).loops()) if has_greenlets(runtime) else []
    except GdbextError:
        return []


class _Suspended(NamedTuple):
    """A greenlet that is switched out: its frames, innermost first, and the address ``stack`` where its stack began."""

    address: int
    frames: tuple[PythonFrame, ...]
    stack: int


class _Greenlets:
    """Reads the greenlets of one process, in one walk through the garbage collector's lists: there is no other list."""

    def __init__(self, runtime: PythonRuntime) -> None:
        self._runtime = runtime
        self._classes: dict[int, Sequence[str]] = {}  # address of a type → names of it and its bases
        self._suspended: dict[int, _Suspended] = {}  # by the address of the greenlet
        self._candidates: list[int] = []  # objects of gevent that greenlets may wait for, and timers of both
        self._timers: Mapping[int, int] = {}
        """A suspended greenlet → a timer that will switch to it, or throw something into it."""

    def loops(self) -> Iterator[RunningLoop]:
        """A loop for each thread with suspended greenlets. Raises GdbextError."""
        runtime = self._runtime
        self._find_objects()
        self._timers = {greenlet: timer for timer in self._candidates for greenlet in self._greenlets_woken_by(timer)}
        awaited: dict[int, int] = {}  # address of a greenlet → the first object that will switch to it
        for candidate in self._candidates:
            for link in self._links_of(candidate):
                for greenlet_address in self._greenlets_switched_by(link):
                    awaited.setdefault(greenlet_address, candidate)
        threads: dict[int, list[RunningTask]] = {}  # by tid
        for suspended in self._suspended.values():
            tid = self._threads.get(self._mapping_of(suspended.stack))
            task = self._task(suspended, awaited.get(suspended.address, 0)) if tid is not None else None
            if tid is not None and task:
                threads.setdefault(tid, []).append(task)
        idents = {runtime.tid_of(state): state.ident for state in runtime.thread_states()}
        for tid, tasks in threads.items():
            yield RunningLoop(0, GREENLET, idents.get(tid), 0, None, 0, tuple(tasks))

    def _find_objects(self) -> None:
        """Fill ``_suspended`` and ``_candidates`` by the classes of all collected objects. Raises GdbextError."""
        for address, kind in collected_objects(self._runtime, _OBJECTS):
            if kind not in self._classes:
                self._classes[kind] = _class_names(self._runtime, kind)
            names = self._classes[kind]
            if "greenlet.greenlet" in names:
                greenlet = self._read(address)
                if greenlet:
                    self._suspended[address] = greenlet
            elif names[0] in _TIMERS or any(name.startswith("gevent.") for name in names):
                self._candidates.append(address)

    def _read(self, address: int) -> _Suspended | None:
        """The greenlet at that address; None if it runs, has ended or has not begun. ``pimpl`` leads to words in which
        the first Python frame object follows the StackState after _STACK words."""
        runtime = self._runtime
        try:
            state = runtime.memory.u64(address + _PIMPL)
            words = runtime.memory.words(state, _STATE_WORDS) if state else ()
        except GdbextError:
            return None
        if not words or words[_SELF // 8] != address:
            return None
        frame_words = (at for at in range(_STACK + 1, len(words)) if self._ref(words[at]).type == "frame")
        at = next(frame_words, 0)
        start, _, copy, saved = words[at - _STACK : at - _STACK + 4] if at else (0, 0, 0, 0)
        if not start:
            return None
        frames = runtime.frames.suspended(words[at], start, copy, saved if saved < 1 << 40 else 0)
        return _Suspended(address, tuple(frames), start) if frames else None

    @cached_property
    def _threads(self) -> Mapping[int, int]:
        """Start address of the mapping that has a thread's stack → tid."""
        tids: dict[int, int] = {}
        stack_pointer = self._runtime.memory.architecture.stack_pointer
        for thread in self._runtime.memory.target.memory.threads():
            with suppress(GdbextError):
                tids.setdefault(self._mapping_of(thread.registers().get(stack_pointer, 0)), thread.tid)
        tids.pop(0, None)
        return tids

    def _mapping_of(self, address: int) -> int:
        """Start of the mapping that contains the address; 0 for none."""
        mapping = self._runtime.modules.mapping_at(address) if self._runtime.modules else None
        return mapping.start if mapping else 0

    def _ref(self, word: int) -> PyRef:
        """The object at that address; missing if the word cannot be the address of one."""
        return PyRef(self._runtime, _object_address(word))

    def _greenlets_switched_by(self, method: int) -> list[int]:
        """Addresses of the suspended greenlets that a call of the ``method`` switches to: it is a method of the
        greenlet, or the method of a Waiter that refers to it, or a Waiter itself."""
        called = 0
        with suppress(GdbextError):
            called = _object_address(self._runtime.memory.u64(method + _LINK_SELF))
        if called in self._suspended:
            return [called]
        waiter = next((each for each in (called, method) if PyRef(self._runtime, each).type.endswith("Waiter")), 0)
        return [each for each in self._members(waiter) if each in self._suspended] if waiter else []

    def _greenlets_woken_by(self, candidate: int) -> Iterator[int]:
        """Addresses of the suspended greenlets that a timer will wake: among its arguments (gevent's Timeout), or by
        the method that it calls. A stopped timer has neither."""
        timer = PyRef(self._runtime, candidate)
        if not timer.type.lower().endswith("timer"):
            return
        own = timer.attributes()
        for word in map(_object_address, [*self._members(candidate), *(value.address for value in own.values())]):
            arguments: Sequence[int] = ()
            with suppress(GdbextError):
                if PyRef(self._runtime, word).type == "tuple":
                    arguments = self._runtime.objects.tuple_items(word)
            for each in (word, *arguments):
                yield from [each] if each in self._suspended else self._greenlets_switched_by(each)

    def _links_of(self, address: int) -> Iterator[int]:
        """Addresses of the items of an object's lists and deques: gevent keeps there what it calls to wake waiters."""
        for word in self._members(address):
            with suppress(GdbextError):
                kind = self._ref(word).type
                if kind == "list":
                    yield from self._runtime.objects.list_items(word, _LINKS)
                elif kind == "collections.deque":
                    yield from deque_items(self._runtime, word, _LINKS)[1]

    def _members(self, address: int) -> Sequence[int]:
        """The words behind an object's head (ob_refcnt, ob_type); none if they cannot be read."""
        try:
            size = self._runtime.objects.type_of(address).size
            return self._runtime.memory.words(address + 16, min(max(size - 16, 0) // 8, _WORDS))
        except GdbextError:
            return ()

    def _task(self, greenlet: _Suspended, awaited: int) -> RunningTask | None:
        """The task, with the frames of the program's own code; None for a greenlet without any, as the library's hub.
        Its ``self`` is the object at ``awaited``, which will switch to it, else (0) the one whose method it has called;
        its timer, if any, is the ``waiter``."""
        own = tuple(frame for frame in greenlet.frames if not any(part in frame.file for part in _LIBRARIES))
        if not own:
            return None
        inner = greenlet.frames[: greenlet.frames.index(own[0])]
        outer = inner[-1] if inner else None
        if not inner and own[0].file.endswith(assumed_names.THREADING_FILE):  # threading, patched by the library
            outer = own[0]
        stack = PyStack(self._runtime)
        called = stack.locals(outer)["self"].address if outer else 0
        variables = stack.locals(inner[-1]) if inner else PyVariables(self._runtime)
        variables["self"] = PyRef(self._runtime, awaited or called)
        timer = self._timers.get(greenlet.address, greenlet.address)
        entered = entered_in(self._runtime, own)
        return RunningTask(greenlet.address, "", 0, own, timer, called, variables, entered, own[-1])


def _class_names(runtime: PythonRuntime, kind: int) -> Sequence[str]:
    """The names of the type at ``kind`` and of its bases. Raises MemoryFault, BadData."""
    return [runtime.objects.type_info(each).name for each in base_classes(runtime.objects, kind)]


def _object_address(word: int) -> int:
    """The word if it can be the address of an object, else 0."""
    return word if word > _LOWEST and not word & 7 and word < 1 << 47 else 0


def greenlet_awaited(runtime: PythonRuntime, task: RunningTask) -> Awaited:
    """The object that a greenlet waits for; a bare switch if that is not known. Raises nothing."""
    timed, classes = task.waiter != task.address, [""]
    with suppress(GdbextError):
        if task.subject:
            classes = [*_class_names(runtime, runtime.objects.type_of(task.subject).address)]
    name = classes[0].rpartition(".")[2]
    package = "gevent" if any(kind.startswith("gevent.") for kind in classes) else "eventlet"
    if name.endswith(("Greenlet", "GreenThread")):
        return Awaited(Awaitable.TASK, task.subject, (task.subject,), timed=timed, package=package)
    kind = next((each for part, each in _KINDS if part in name), None)
    if kind:
        owner = PyRef(runtime, task.awaited).attributes()["_owner"]
        holder = owner.int() or owner.address  # its ident, that is its address, in a patched RLock
        return Awaited(kind, task.subject, timed=timed, package=package, holder=holder)
    delay = task.variables["seconds"].float()
    return Awaited(Awaitable.SWITCH, task.address, delay=delay, timed=timed, package=package)
