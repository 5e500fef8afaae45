"""Names of Python threads, as ``threading`` knows them: threading._active maps idents to Thread objects."""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.cpython.abi import stdlib
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.cpython.threads.thread_state import Interpreter
from gdbext.errors import BadData, GdbextError, MemoryFault

NAME_LIMIT = 256


def read_thread_names(runtime: PythonRuntime) -> dict[int, str]:
    """Thread ident to name over all interpreters; what cannot be read is left out. Raises nothing.

    Whoever imports ``threading`` in an interpreter is its "MainThread" there: the name that a thread has in the main
    interpreter, or else in the oldest one, is its own.
    """
    names: dict[int, str] = {}
    for ident, thread in _active_threads(runtime):
        _add_name(runtime, names, ident, thread)
    return names


def read_native_ids(runtime: PythonRuntime) -> dict[int, int]:
    """Thread ident to the Thread's native_id; what cannot be read is left out. Raises nothing."""
    found: dict[int, int] = {}
    for ident, thread in _active_threads(runtime):
        native = runtime.dicts.attribute(thread, stdlib.THREAD_NATIVE_ID)
        try:
            if native is not None:
                found[runtime.objects.integer(ident)] = runtime.objects.integer(native)
        except (BadData, MemoryFault):
            continue
    return found


def awaited_at_exit(runtime: PythonRuntime) -> list[int]:
    """Idents of the threads that are no daemons: the interpreter waits for their end before its own (_shutdown of
    Lib/threading.py). The main thread is among them. Raises nothing."""
    found = []
    for ident, thread in _active_threads(runtime):
        daemon = runtime.dicts.attribute(thread, stdlib.THREAD_DAEMON)
        try:
            if daemon is not None and not runtime.objects.integer(daemon):
                found.append(runtime.objects.integer(ident))
        except (BadData, MemoryFault):
            continue
    return found


def _active_threads(runtime: PythonRuntime) -> Iterator[tuple[int, int]]:
    """(ident, Thread) objects of threading._active, the main interpreter's first."""
    try:
        interpreters = runtime.interpreters()
    except (BadData, MemoryFault):
        return
    for interpreter in reversed(interpreters):
        try:
            active = module_global(runtime, interpreter, stdlib.THREADING, stdlib.ACTIVE_THREADS)
            items = list(runtime.dicts.items(active)) if active else []
        except GdbextError:
            continue
        yield from items


def _add_name(runtime: PythonRuntime, names: dict[int, str], ident: int, thread: int) -> None:
    try:
        name = runtime.dicts.attribute(thread, stdlib.THREAD_NAME)
        if name is not None:
            names.setdefault(runtime.objects.integer(ident), runtime.objects.text(name, NAME_LIMIT))
    except (BadData, MemoryFault):
        return


def module_global(runtime: PythonRuntime, interpreter: Interpreter, module: str, name: str) -> int | None:
    """Address of a global of an imported module (sys.modules); None where it is not imported or has no such name.

    Raises BadData, MemoryFault.
    """
    memory, layout = runtime.memory, runtime.layout
    modules = memory.u64(interpreter.address + layout.offset("PyInterpreterState", layout.abi.modules))
    found = runtime.dicts.get(modules, module) if modules else None
    if found is None:
        return None
    namespace = memory.u64(found + layout.offset("PyModuleObject", "md_dict"))
    return runtime.dicts.get(namespace, name) if namespace else None
