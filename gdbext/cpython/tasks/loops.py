"""asyncio's event loops, their tasks, and the coroutines that are suspended in them.

A suspended coroutine keeps its frame (cr_frame, or cr_iframe inside of it: Include/cpython/genobject.h); the object
that it awaits is on top of that frame's stack (_PyGen_yf, Objects/genobject.c).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import FrameObjects
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.abi.assumed_names import FUTURE_CALLBACKS
from gdbext.cpython.abi.python_layout import TASK_LAYOUTS, TaskLayout
from gdbext.cpython.objects.py_ref import PyRef, PyVariables, size_of_deque
from gdbext.cpython.sync.held_locks import entered_in
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.frame_variables import PyStack, generator_frame, objects_at, value_stack
from gdbext.cpython.threads.object_text import exception_text, raised_in
from gdbext.errors import BadData, GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import Interpreter, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

_LONGEST = 100  # most coroutines of a chain that are read
_GENERATORS = ("coroutine", "generator", "async_generator")
_WRAPPERS = ("coroutine_wrapper", "async_generator_asend", "async_generator_athrow")
"""Iterators around a coroutine or an asynchronous generator, which they keep behind their header."""
_FUTURE_ITERATOR = "_asyncio.FutureIter"


def coroutine_chain(runtime: PythonRuntime, coroutine: int) -> tuple[list[PythonFrame], int]:
    """(the frames of the suspended coroutine at that address and of those that it awaits, the innermost first; address
    of the object that the innermost one awaits, 0 if it is not known). Raises nothing."""
    frames: list[PythonFrame] = []
    awaited = coroutine
    with suppress(GdbextError):  # the frames that were read until then are an answer, too
        while len(frames) < _LONGEST:
            kind = runtime.objects.type_of(awaited).name
            if kind in _WRAPPERS:
                awaited = py.CoroutineWrapper(runtime.space, awaited).cw_coroutine
            elif _is_cython_coroutine(kind):
                awaited = _awaited_by_cython(runtime, awaited)
            elif kind not in _GENERATORS:
                if kind == _FUTURE_ITERATOR:
                    awaited = py.FutureIterator(runtime.space, awaited).future
                return frames[::-1], awaited
            else:
                frame = generator_frame(runtime, awaited)
                if not frame:
                    break
                frames.append(frame)
                awaited = _awaited_by(runtime, frame)
    return frames[::-1], 0


def _awaited_by_cython(runtime: PythonRuntime, address: int) -> int:
    """Address of the only awaitable object in a coroutine object of Cython, which has no frame. Raises BadData if there
    is not exactly one, MemoryFault."""
    size = runtime.objects.type_of(address).size
    awaitables = set()
    for word in runtime.memory.words(address + 16, min(max(size - 16, 0) // 8, _LOOP_WORDS)):
        kind = PyRef(runtime, word).type if word > _LOWEST and not word & 7 else ""
        if kind in (*_GENERATORS, *_WRAPPERS, _FUTURE_ITERATOR) or _is_cython_coroutine(kind):
            awaitables.add(word)
    if len(awaitables) != 1:
        raise BadData(f"the coroutine at {address:#x} refers to {len(awaitables)} awaitable objects")
    return awaitables.pop()


def _is_cython_coroutine(kind: str) -> bool:
    """True for the class name of a coroutine or generator of Cython, whose module ends with Cython's version:
    ``_cython_3_0_11`` (Cython/Utility/CommonStructures.c)."""
    return kind.startswith("_cython_") and kind.rpartition(".")[2] in _GENERATORS


def _awaited_by(runtime: PythonRuntime, frame: PythonFrame) -> int:
    """Address of the object that a suspended frame awaits, on top of its value stack. Raises MemoryFault, BadData."""
    form = runtime.layout.abi.frames
    start, below = value_stack(runtime, frame), 1
    if isinstance(form, FrameObjects):
        old = py.PyFrameObject(runtime.space, frame.address)
        depth = (old.f_stacktop - start) // 8 if old.has(py.PyFrameObject.f_stacktop) else old.f_stackdepth
    else:
        inner = py.PyInterpreterFrame(runtime.space, frame.address)
        if inner.has(py.PyInterpreterFrame.stacktop):
            depth, start = inner.stacktop, inner.localsplus
        elif inner.has(py.PyInterpreterFrame.stackpointer):
            depth, below = (inner.stackpointer - start) // 8, form.awaited_slot
        else:
            raise BadData("the end of a suspended frame's stack is unknown in this version")
    if not below <= depth < 10_000:
        raise BadData(f"the stack of the frame at {frame.address:#x} has {depth} entries")
    return objects_at(runtime, start + 8 * (depth - below), 1)[0]


_TASKS = 10_000
_LONGEST_NAME = 128
_CALLBACKS = 64
_LOOP_WORDS = 256  # most words of a structure that are searched
_LOWEST = 1 << 16  # vm.mmap_min_addr: no object lies below it


class RunningTask(NamedTuple):
    """One task that is not done. ``frames``: of its coroutines, innermost first, while it is suspended; ``variables``:
    locals of the innermost one; ``outer``: the frame of the task's own coroutine, also while it runs, None if it cannot
    be read. Addresses: of its ``loop``, of the object ``awaited`` by the innermost coroutine, of the future ``waiter``
    that will wake the task (0 if it is about to run), of the context managers ``entered`` by ``async with``."""

    address: int
    name: str
    loop: int
    frames: tuple[PythonFrame, ...]
    waiter: int
    awaited: int
    variables: PyVariables
    entered: tuple[int, ...]
    outer: PythonFrame | None = None

    @property
    def subject(self) -> int:
        """Address of ``self`` in the innermost coroutine, 0 if it is no method."""
        return self.variables["self"].address


class EndedTask(NamedTuple):
    """A task that ended with an exception that was never retrieved, and that something still refers to. ``error``:
    ``ValueError('bad record')``; ``raised_in``: the function that raised it with its first line, ``load (train.py:8)``,
    "" if unknown."""

    name: str
    error: str
    raised_in: str


class RunningLoop(NamedTuple):
    """One loop. ``kind``: the name of its class; ``ident``: threading.get_ident() of the thread that runs it, None if
    unknown; ``queue``: address of the deque of callbacks that are due (0 if unknown), ``ready`` their number;
    ``current``: address of the running task, 0 for none. ``watches_itself``: True if only its own process can wake it,
    as it has no timer and no signal handler, and watches no fd but that of ``call_soon_threadsafe``; False if that
    cannot be read."""

    address: int
    kind: str
    ident: int | None
    queue: int
    ready: int | None
    current: int
    tasks: tuple[RunningTask, ...]
    watches_itself: bool = False
    ended: tuple[EndedTask, ...] = ()


def read_loops(runtime: PythonRuntime) -> list[RunningLoop]:
    """All loops that have tasks and can be read; none in free-threaded builds, whose layouts of _asyncio and
    _collections are unknown. Raises nothing."""
    if runtime.layout.abi.free_threaded:
        return []
    layout = TASK_LAYOUTS.get(runtime.layout.abi.version)
    lists = None if layout else published_lists(runtime)
    layout = lists.task if lists else layout
    loops: list[RunningLoop] = []
    with suppress(GdbextError):
        for interpreter in runtime.interpreters():
            loops += _loops_of(runtime, interpreter, lists, layout)
    return loops


def _loops_of(
    runtime: PythonRuntime, interpreter: Interpreter, lists: TaskLists | None, layout: TaskLayout | None
) -> Iterator[RunningLoop]:
    """The loops of one interpreter with their tasks. ``layout``: of its C tasks, None if unknown; ``lists``: where the
    interpreter keeps them, None before 3.14."""
    current, addresses = _tasks_of_module(runtime, interpreter)
    idents: dict[int, int] = {}  # address of a loop → threading.get_ident() of its thread
    if lists:
        for loop, task, ident in _current_loops(runtime, lists, interpreter):
            idents[loop] = ident
            current.update({loop: task} if task else {})
        addresses += _listed_tasks(runtime, lists, interpreter)
    tasks: dict[int, list[RunningTask]] = {loop: [] for loop in current}
    ended: dict[int, list[EndedTask]] = {}
    for address in dict.fromkeys(addresses[:_TASKS]):
        running_task = _task(runtime, layout, address, runs=address in current.values())
        if running_task:
            tasks.setdefault(running_task.loop, []).append(running_task)
        elif sum(map(len, ended.values())) < 16:
            for owner, failed in _failed_task(runtime, layout, address, bool(lists)):
                ended.setdefault(owner, []).append(failed)
    for address, own_tasks in tasks.items():
        loop_record = _loop(runtime, address, current.get(address, 0), tuple(own_tasks), idents.get(address))
        yield loop_record._replace(ended=tuple(ended.get(address, ())))


def _failed_task(
    runtime: PythonRuntime, layout: TaskLayout | None, address: int, published: bool
) -> Iterator[tuple[int, EndedTask]]:
    """(address of its loop, the task), if the C task at that address ended with an exception that was never retrieved;
    else nothing. ``published``: the module publishes its layout. Raises nothing.

    ``fut_log_tb`` says so: an int behind the state, since 3.12 the lowest bit there; where the layout is published
    (3.14), bit 16, behind two chars (FutureObj_HEAD of Modules/_asynciomodule.c).
    """
    with suppress(GdbextError):
        if not address or not layout or runtime.objects.type_of(address).size != layout.task_size:
            return
        if runtime.memory.u32(address + layout.state) != 2:  # FUTURE_FINISHED
            return
        if not runtime.memory.u32(address + layout.state + 4) >> (16 if published else 0) & 1:
            return
        future = py.FutureObj(runtime.space, address)
        text = exception_text(runtime, future.fut_exception)
        name = _task_name(PyRef(runtime, runtime.memory.u64(address + layout.name)))
        if text:
            yield future.fut_loop, EndedTask(name, text, raised_in(runtime, future.fut_exception))


def loop_at(runtime: PythonRuntime, address: int) -> RunningLoop | None:
    """The loop of asyncio at an address, without its tasks; None for any other object."""
    own = PyRef(runtime, address).attributes()
    if "_ready" not in own or "_thread_id" not in own:
        return None
    return _loop(runtime, address, 0, (), None)


def owes(runtime: PythonRuntime, loop: RunningLoop, future: PyRef) -> bool:
    """True if only this loop can complete a concurrent.futures.Future: a callback that is due has it in its closure, or
    it is completed with one of the loop's tasks (run_coroutine_threadsafe; _chain_future, Lib/asyncio/futures.py)."""
    nothing: tuple[int, ...] = ()
    for handle in PyRef(runtime, loop.queue).elements(256):
        # A Handle has slots for its callback and arguments (Lib/asyncio/events.py).
        words = handle.read_or(lambda python, at: python.memory.words(at + 16, 8), nothing)
        if any(not word & 7 and future in PyRef(runtime, word).closure for word in words):
            return True
    tasks = {task.address for task in loop.tasks}
    functions = future.attributes()[FUTURE_CALLBACKS].elements(_CALLBACKS) if tasks else ()
    return any(value.address in tasks for function in functions for value in function.closure)


def _task(runtime: PythonRuntime, layout: TaskLayout | None, address: int, runs: bool) -> RunningTask | None:
    """A task by its C structure, or by its attributes if it is written in Python; None for one that is done.
    ``runs``: it is the current task of its loop."""
    try:
        fields = _c_fields(runtime, layout, address) or _python_fields(PyRef(runtime, address).attributes())
        if not fields:
            return None
        coroutine, waiter, loop, name = fields
        frames, awaited = ([], 0) if runs else coroutine_chain(runtime, coroutine)
        outer = frames[-1] if frames else running_frame(runtime, coroutine)
        variables = PyStack(runtime).locals(frames[0]).checked() if frames else PyVariables(runtime)
        entered = entered_in(runtime, frames)
        return RunningTask(address, name, loop, tuple(frames), waiter, awaited, variables, entered, outer)
    except GdbextError:
        return None


def running_frame(runtime: PythonRuntime, coroutine: int) -> PythonFrame | None:
    """The frame of a coroutine, also while it runs; None for any other object."""
    try:
        is_coroutine = runtime.objects.type_of(coroutine).name == "coroutine"
        return generator_frame(runtime, coroutine) if is_coroutine else None
    except GdbextError:
        return None  # the name of the task is known without it


def _python_fields(own: PyVariables) -> tuple[int, int, int, str] | None:
    """``_c_fields`` of a task that is written in Python, by its attributes."""
    coroutine, waiter = own["_coro"], own["_fut_waiter"]
    if not coroutine or not waiter or own["_state"].str(_LONGEST_NAME) in ("FINISHED", "CANCELLED"):
        return None
    return coroutine.address, 0 if waiter.is_none else waiter.address, own["_loop"].address, _task_name(own["_name"])


def _c_fields(runtime: PythonRuntime, layout: TaskLayout | None, address: int) -> tuple[int, int, int, str] | None:
    """(coroutine, future that wakes it or 0, loop, name), three addresses and a str, of a C task that is not done, else
    None. Raises MemoryFault, BadData."""
    if not address or not layout:
        return None
    info, memory = runtime.objects.type_of(address), runtime.memory
    if info.name != "_asyncio.Task" or info.size != layout.task_size or memory.u32(address + layout.state):
        return None
    name = PyRef(runtime, memory.u64(address + layout.name))
    coroutine, waiter = memory.u64(address + layout.coroutine), memory.u64(address + layout.waiter)
    return coroutine, waiter, py.FutureObj(runtime.space, address).fut_loop, _task_name(name)


def _loop(
    runtime: PythonRuntime, address: int, current: int, tasks: tuple[RunningTask, ...], ident: int | None
) -> RunningLoop:
    """The record of the loop at an address. ``current``: address of its running task, 0 for none; ``ident``: of its
    thread if the interpreter records that, else its own attribute has it."""
    loop = PyRef(runtime, address)
    own = loop.attributes()
    queue, thread_id = own["_ready"].address, own["_thread_id"].int()
    if not queue:
        queue, thread_id = _native_loop(runtime, address)
    ready = PyRef(runtime, queue).read_or(size_of_deque, None)
    queue = queue if ready is not None else 0
    return RunningLoop(address, loop.type, ident or thread_id, queue, ready, current, tasks, _watches_itself(own))


def _watches_itself(own: PyVariables) -> bool:
    """``RunningLoop.watches_itself`` by the attributes of asyncio's loops (3.8 to 3.15): ``_scheduled`` has the timers,
    ``_ssock`` is the socket by which threads wake the loop, ``_selector._fd_to_key`` has the fds that it watches."""
    for sources in (own["_scheduled"].elements(1), own["_signal_handlers"].keys(1)):
        if sources or sources.fault:
            return False
    watched = own["_selector"].attributes()["_fd_to_key"].keys()
    return bool(own["_ssock"]) and not watched.fault and len(watched) == 1


def _native_loop(runtime: PythonRuntime, address: int) -> tuple[int, int | None]:
    """(address of the deque of callbacks, 0 if unknown; ident of the thread) of a loop that is a C structure, such as
    uvloop's: by the only word that is a deque, and the only one that is the ident of a thread. An ident is an address;
    a smaller number, in an overwritten thread state, may equal any counter of the loop."""
    try:
        size = runtime.objects.type_of(address).size
        words = runtime.memory.words(address, min(size // 8, _LOOP_WORDS))
        idents = {state.ident for state in runtime.thread_states() if state.ident > _LOWEST}
    except GdbextError:
        return 0, None
    objects = (PyRef(runtime, word) for word in words if word > _LOWEST and not word & 7)
    queues = [each.address for each in objects if each.type == "collections.deque"]
    own_idents = idents.intersection(words)
    return (queues[0] if len(queues) == 1 else 0), (own_idents.pop() if len(own_idents) == 1 else None)


def _task_name(value: PyRef) -> str:
    """A task's name; since 3.12 it is a number, for ``Task-7``, until the program reads it."""
    number = value.int()
    return f"Task-{number}" if number is not None else value.str(_LONGEST_NAME)


_WORDS = 13  # words of Py_AsyncioModuleDebugOffsets
_LARGEST = 1 << 24  # largest size or offset in bytes that is plausible


class TaskLists(NamedTuple):
    """Offsets in bytes of asyncio's lists of tasks, which its C module publishes (Py_AsyncioModuleDebugOffsets,
    Modules/_asynciomodule.c): groups of uint64_t for a task, an interpreter and a thread state, each after the size of
    the structure. A thread state has the head of a ring of the tasks that were made in its thread; those of ended
    threads are moved to the interpreter."""

    task: TaskLayout
    node: int  # of the list node in a task
    interpreter_head: int
    thread_head: int
    running_loop: int  # of a pointer in a thread state
    running_task: int


def published_lists(runtime: PythonRuntime) -> TaskLists | None:
    """The offsets that the module of asyncio, or the interpreter that contains it, publishes; None without any (before
    3.14). Raises nothing."""
    modules = runtime.modules.modules if runtime.modules else ()
    for module in (*(module for module in modules if module.name.startswith("_asyncio.")), runtime.module):
        section = module.image.sections.get(".AsyncioDebug") if module.image else None
        raw = runtime.memory.try_read(module.base + section.address, _WORDS * 8) if section else b""
        lists = parsed(raw) if raw else None
        if lists:
            return lists
    return None


def parsed(raw: bytes) -> TaskLists | None:
    """The offsets in the contents of the section; None if they cannot be offsets."""
    size, name, _, is_task, _, coroutine, node, _, interpreter_head, _, loop, task, thread_head = struct.unpack(
        f"<{_WORDS}Q", raw
    )
    if not (max(name, is_task, coroutine, node) < size < interpreter_head < _LARGEST and thread_head < _LARGEST):
        return None
    # The state, an int, is before task_is_task, and the future that is waited for before the coroutine.
    layout = TaskLayout(task_size=size, waiter=coroutine - 8, coroutine=coroutine, name=name, state=is_task - 4)
    return TaskLists(layout, node, interpreter_head, thread_head, loop, task)


def _listed_tasks(runtime: PythonRuntime, lists: TaskLists, interpreter: Interpreter) -> Iterator[int]:
    """Addresses of the tasks of an interpreter. Raises nothing; a damaged list ends where it is damaged."""
    heads = [state.address + lists.thread_head for state in _states(runtime, interpreter)]
    for head in (interpreter.address + lists.interpreter_head, *heads):
        yield from _ring(runtime, lists, head)


def _current_loops(
    runtime: PythonRuntime, lists: TaskLists, interpreter: Interpreter
) -> Iterator[tuple[int, int, int]]:
    """(address of the loop, address of its current task or 0, threading.get_ident()) of each thread that runs a loop.
    Raises nothing."""
    for state in _states(runtime, interpreter):
        with suppress(GdbextError):
            loop = runtime.memory.u64(state.address + lists.running_loop)
            task = runtime.memory.u64(state.address + lists.running_task)
            if loop:
                yield loop, task, state.ident


def _states(runtime: PythonRuntime, interpreter: Interpreter) -> list[ThreadState]:
    """The thread states of an interpreter; none if they cannot be read."""
    try:
        return [state for state in runtime.thread_states() if state.interpreter.address == interpreter.address]
    except GdbextError:
        return []


def _ring(runtime: PythonRuntime, lists: TaskLists, head: int) -> Iterator[int]:
    """Addresses of the tasks of one list: a ring of ``struct llist_node`` (pycore_llist.h), whose first word is the
    next node."""
    seen = {head}
    with suppress(GdbextError):
        node = runtime.memory.u64(head)
        while node and node not in seen and len(seen) < 100_000:
            seen.add(node)
            yield node - lists.node
            node = runtime.memory.u64(node)


def _tasks_of_module(runtime: PythonRuntime, interpreter: Interpreter) -> tuple[dict[int, int], list[int]]:
    """(address of a loop → address of the task that it runs; addresses of all tasks) by the variables of asyncio.tasks:
    weak sets up to 3.13, and later only for tasks that are written in Python. Raises nothing."""
    own = runtime.globals_in(interpreter, "asyncio.tasks")
    current = {loop.address: task.address for loop, task in own["_current_tasks"].items()}
    weak_sets = (own[name].attributes()["data"] for name in ("_all_tasks", "_scheduled_tasks"))
    tasks = [*(reference.referent for weak_set in weak_sets for reference in weak_set), *own["_eager_tasks"]]
    return current, [task.address for task in tasks if task]
