"""Which locks a thread holds by ``with lock:``, read from its Python frames.

While the body of a ``with`` runs, the bound ``__exit__`` of its lock lies on the frame's value stack. Words above the
stack's top are left over from earlier calls, so only slots that are proven to be in use count: the interpreter must
be able to unwind to the depth that the exception table (Objects/exception_handling_notes.txt of 3.11,
InternalDocs/exception_handling.md of 3.13) or the block stack (PyTryBlock, cpython/frameobject.h of 3.8) names for the
current instruction. The block begins only after ``__enter__`` has returned, so a thread that still waits for the lock
is not counted.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.cpython.abi import stdlib
from gdbext.cpython.abi.python_abi import ExitForm, FrameObjects, InterpreterFrames
from gdbext.cpython.sync.locks import LockState, read_lock
from gdbext.cpython.threads.python_frame import PythonFrame
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.cpython.threads.slots import locals_of, objects_at, value_stack
from gdbext.cpython.threads.thread_state import ThreadState
from gdbext.errors import GdbextError

_FRAMES = 200
"""Innermost Python frames that are read."""
_TABLE_LIMIT = 1 << 20
_DEPTH_LIMIT = 1000
_BLOCKS = 20
"""CO_MAXBLOCKS (cpython/code.h)."""
_BLOCK_SIZE, _BLOCK_LEVEL = 12, 8  # sizeof(PyTryBlock): three ints, b_level is the last


def held_locks(runtime: PythonRuntime, state: ThreadState) -> list[LockState]:
    """The locks (Lock, RLock) inside whose ``with`` block the thread is, innermost first. Raises nothing.

    Not among them: a lock that a Condition.wait further in has given up, and those of functions that mention
    ``release``, which may have let go of them inside the block.
    """
    found: list[LockState] = []
    given_up: set[int] = set()
    for frame in runtime.frames.stack(state).frames[:_FRAMES]:
        try:
            given_up.update(_given_up(runtime, frame))
            locks = [lock for lock in _locks_of(runtime, frame) if lock.address not in given_up]
            if locks and not _mentions_release(runtime, frame):
                found.extend(locks)
        except GdbextError:
            continue
    return found


def _given_up(runtime: PythonRuntime, frame: PythonFrame) -> Iterator[int]:
    """The lock that threading.Condition.wait has released for the time of the wait."""
    if frame.function.rpartition(".")[2] != stdlib.CONDITION_WAIT or not frame.file.endswith(stdlib.THREADING_FILE):
        return
    condition = locals_of(runtime, frame).get("self", 0)
    lock = runtime.dicts.attribute(condition, stdlib.CONDITION_LOCK) if condition else None
    if lock:
        yield lock


def _mentions_release(runtime: PythonRuntime, frame: PythonFrame) -> bool:
    """``release`` is among the names that the function's code uses (co_names)."""
    names = runtime.memory.u64(frame.code + runtime.layout.offset("PyCodeObject", "co_names"))
    return any(runtime.objects.text_equals(name, "release") for name in runtime.objects.tuple_items(names))


def _locks_of(runtime: PythonRuntime, frame: PythonFrame) -> Iterator[LockState]:
    depth = min(_live_depth(runtime, frame), _DEPTH_LIMIT)
    if not depth:
        return
    previous = 0
    for slot in objects_at(runtime, value_stack(runtime, frame), depth):
        lock = _lock_of_exit(runtime, previous, slot)
        if lock is not None:
            yield lock
        previous = slot


def _lock_of_exit(runtime: PythonRuntime, previous: int, address: int) -> LockState | None:
    """The lock whose ``__exit__`` stands in a slot: bound to it, or as a function in the slot before it."""
    if address & 7 or address < 4096:
        return None
    form = runtime.layout.abi.frames
    try:
        if isinstance(form, InterpreterFrames) and form.exit_form is ExitForm.FUNCTION_AND_SELF:
            return read_lock(runtime, address) if _is_exit(runtime, previous) else None
        if runtime.objects.type_of(address).name != "builtin_function_or_method":
            return None
        owner = runtime.memory.u64(address + runtime.layout.offset("PyCFunctionObject", "m_self"))
    except GdbextError:
        return None
    return read_lock(runtime, owner) if owner else None


def _is_exit(runtime: PythonRuntime, address: int) -> bool:
    """A method of a built-in type called ``__exit__``. Raises MemoryFault, BadData."""
    if not address or runtime.objects.type_of(address).name != "method_descriptor":
        return False
    name = runtime.memory.u64(address + runtime.layout.offset("PyDescrObject", "d_name"))
    return runtime.objects.text_equals(name, "__exit__")


def _live_depth(runtime: PythonRuntime, frame: PythonFrame) -> int:
    """Slots of the value stack that are certainly in use."""
    form = runtime.layout.abi.frames
    if isinstance(form, FrameObjects):
        return _depth_by_block_stack(runtime, frame)
    return _depth_by_exception_table(runtime, frame, form)


def _depth_by_exception_table(runtime: PythonRuntime, frame: PythonFrame, form: InterpreterFrames) -> int:
    memory, offset = runtime.memory, runtime.layout.offset
    instruction = memory.u64(frame.address + offset("_PyInterpreterFrame", form.instruction))
    at = instruction - runtime.codes.get(frame.code).bytecode
    table = memory.u64(frame.code + offset("PyCodeObject", "co_exceptiontable"))
    depths = [depth for start, end, depth in entries(runtime.objects.bytes(table, _TABLE_LIMIT)) if start <= at < end]
    return max(depths, default=0)


def _depth_by_block_stack(runtime: PythonRuntime, frame: PythonFrame) -> int:
    offset, memory = runtime.layout.offset, runtime.memory
    count = memory.i32(frame.address + offset("PyFrameObject", "f_iblock"))
    if not 0 < count <= _BLOCKS:
        return 0
    last = frame.address + offset("PyFrameObject", "f_blockstack") + (count - 1) * _BLOCK_SIZE
    return max(memory.i32(last + _BLOCK_LEVEL), 0)


def entries(table: bytes) -> Iterator[tuple[int, int, int]]:
    """The exception table: (start, end, depth); offsets in bytes from the first instruction.

    Each entry is four numbers, most significant six bits first; bit 6 says that more follow, bit 7 marks the first
    byte of an entry: start, length and target in code units of two bytes, then depth << 1 | lasti.
    """
    position = 0

    def number() -> int:
        nonlocal position
        byte = table[position]
        value = byte & 63
        position += 1
        while byte & 64:
            byte = table[position]
            value = value << 6 | byte & 63
            position += 1
        return value

    try:
        while position < len(table):
            start, length, _, depth = number(), number(), number(), number()
            yield start * 2, (start + length) * 2, depth >> 1
    except IndexError:
        return
