"""The places where asyncio keeps its tasks: weak sets of Python, and since CPython 3.14 lists of its C module.

The module ``asyncio.tasks`` has all tasks in weak sets (_all_tasks up to 3.11, _scheduled_tasks and _eager_tasks since
3.12), and those that run now in _current_tasks (Lib/asyncio/tasks.py); since 3.14 there are only tasks that are written
in Python.

The C module publishes the offsets of its lists. A section of its own file has ``Py_AsyncioModuleDebugOffsets``
(Modules/_asynciomodule.c): groups of uint64_t for a task, an interpreter and a thread state, each beginning with the
size of the structure. Each thread state is the head of a ring of the tasks that were made in its thread; those of
threads that have ended are moved to the interpreter.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi.python_layout import TaskLayout
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.cpython.threads.frame_reader import Interpreter, ThreadState
    from gdbext.cpython.threads.runtime import PythonRuntime

_SECTION = ".AsyncioDebug"
_WORDS = 13
_LARGEST = 1 << 24
"""Bytes; sizes and offsets beyond are none."""
_LIMIT = 100_000


class TaskLists(NamedTuple):
    """Offsets in bytes: ``task`` of a Task, ``node`` of its list node, ``interpreter_head`` and ``thread_head`` of the
    heads of the lists, ``running_loop`` and ``running_task`` of pointers in a thread state."""

    task: TaskLayout
    node: int
    interpreter_head: int
    thread_head: int
    running_loop: int
    running_task: int


def published_lists(runtime: PythonRuntime) -> TaskLists | None:
    """The lists that the extension module publishes, or the interpreter that contains it; None for a version that does
    not, and if asyncio is not loaded. Raises nothing."""
    modules = runtime.modules.modules if runtime.modules else ()
    for module in (*(module for module in modules if module.name.startswith("_asyncio.")), runtime.module):
        section = module.image.sections.get(_SECTION) if module.image else None
        raw = runtime.memory.try_read(module.base + section.address, _WORDS * 8) if section else b""
        lists = parsed(raw) if raw else None
        if lists:
            return lists
    return None


def parsed(raw: bytes) -> TaskLists | None:
    """The section's contents; None for what cannot be offsets."""
    size, name, _, is_task, _, coroutine, node, _, interpreter_head, _, loop, task, thread_head = struct.unpack(
        f"<{_WORDS}Q", raw
    )
    if not (max(name, is_task, coroutine, node) < size < interpreter_head < _LARGEST and thread_head < _LARGEST):
        return None
    # The state, an int, is before task_is_task, and the future that is waited for before the coroutine.
    layout = TaskLayout(task_size=size, waiter=coroutine - 8, coroutine=coroutine, name=name, state=is_task - 4)
    return TaskLists(layout, node, interpreter_head, thread_head, loop, task)


def listed_tasks(runtime: PythonRuntime, lists: TaskLists, interpreter: Interpreter) -> Iterator[int]:
    """Addresses of the tasks of an interpreter. Raises nothing; a damaged list ends where it is damaged."""
    yield from _ring(runtime, lists, interpreter.address + lists.interpreter_head)
    for state in _states(runtime, interpreter):
        yield from _ring(runtime, lists, state.address + lists.thread_head)


def running(runtime: PythonRuntime, lists: TaskLists, interpreter: Interpreter) -> Iterator[tuple[int, int, int]]:
    """Loop, task (0 for none) and threading.get_ident() of each thread that runs a loop. Raises nothing."""
    for state in _states(runtime, interpreter):
        try:
            loop = runtime.memory.u64(state.address + lists.running_loop)
            task = runtime.memory.u64(state.address + lists.running_task)
        except GdbextError:
            continue
        if loop:
            yield loop, task, state.ident


def _states(runtime: PythonRuntime, interpreter: Interpreter) -> list[ThreadState]:
    try:
        return [state for state in runtime.thread_states() if state.interpreter.address == interpreter.address]
    except GdbextError:
        return []


def _ring(runtime: PythonRuntime, lists: TaskLists, head: int) -> Iterator[int]:
    """The tasks of one list: a ring of ``struct llist_node`` (pycore_llist.h), whose first word is the next node."""
    seen = {head}
    try:
        node = runtime.memory.u64(head)
        while node and node not in seen and len(seen) < _LIMIT:
            seen.add(node)
            yield node - lists.node
            node = runtime.memory.u64(node)
    except GdbextError:
        return


_MODULE = "asyncio.tasks"


def current_tasks(runtime: PythonRuntime, interpreter: Interpreter) -> dict[int, int]:
    """Address of a loop → address of the task that it runs, of each loop that runs one. Raises nothing."""
    current = runtime.globals_in(interpreter, _MODULE)["_current_tasks"].items()
    return {loop.address: task.address for loop, task in current}


def all_tasks(runtime: PythonRuntime, interpreter: Interpreter) -> list[int]:
    """The addresses of the tasks in the weak sets. Raises nothing."""
    own = runtime.globals_in(interpreter, _MODULE)
    sets = (own[name].attributes(64)["data"] for name in ("_all_tasks", "_scheduled_tasks"))
    tasks = [*(each.referent for references in sets for each in references), *own["_eager_tasks"]]
    return [task.address for task in tasks if task]
