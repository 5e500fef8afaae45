"""Locks that a thread holds by ``with lock:`` or by ``lock.acquire()`` before a ``try``, read from its Python frames.

While the body of a ``with`` runs, the bound ``__exit__`` of its lock lies on the frame's value stack. Words above the
stack's top are left over from earlier calls, so only slots that are proven to be in use count: the interpreter must
be able to unwind to the depth that the exception table (Objects/exception_handling_notes.txt of 3.11,
InternalDocs/exception_handling.md of 3.13) or the block stack (PyTryBlock, cpython/frameobject.h of 3.8) names for the
current instruction. The block begins only after ``__enter__`` has returned, so a thread that still waits for the lock
is not counted. A lock may also be that of a generator: contextlib's ``contextmanager`` suspends it inside of its own
``with lock:`` while the body runs, so its frame is read as if it were on the thread's stack.

A lock taken by ``lock.acquire()`` leaves nothing on the frame's stack. But code that names both calls, has the lock at
hand, and is inside a ``try`` block, has most likely taken the lock on its way there. So has code after a
statement ``lock.acquire()`` with no ``release`` in between.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress

from gdbext.cpython.abi import ExitForm, FrameObjects, InterpreterFrames, assumed_names
from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.objects.object_items import deque_items
from gdbext.cpython.objects.py_space import once
from gdbext.cpython.sync.locks import LockState, read_lock
from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
from gdbext.cpython.threads.frame_variables import (
    attributes,
    generator_frame,
    locals_of,
    objects_at,
    used_names,
    value_stack,
    variables,
)
from gdbext.cpython.threads.loop_names import CalledMethod, called_methods, line_of_block
from gdbext.cpython.threads.runtime import PythonRuntime
from gdbext.errors import GdbextError

_WITH_FRAMES = 200  # innermost Python frames that are read
_TABLE_LIMIT = 1 << 20
_DEPTH_LIMIT = 1000
_FUNCTION_NAMES = {"method_descriptor": py.PyDescrObject.d_name, "function": py.PyFunctionObject.func_name}
"""Type of a function object → where its name is."""
_CYTHON_FUNCTION = "cython_function_or_method"
"""The type of what Cython has compiled, which begins as a PyCFunctionObject (Cython/Utility/CythonFunction.c)."""
_NAME_LIMIT = 64
_BLOCKS = 20  # most blocks of a code object: CO_MAXBLOCKS (cpython/code.h)


def held_locks(runtime: PythonRuntime, state: ThreadState) -> list[LockState]:
    """The locks (Lock, RLock, also those of a Condition) inside whose ``with`` block the thread is, innermost first.
    Raises nothing.

    Not among them: a lock that a Condition.wait further in has given up, and those of functions that mention
    ``release``, which may have released them inside the block.
    """
    held: list[LockState] = []
    given_up: set[int] = set()
    for _, frame in _holding_frames(runtime, state, _WITH_FRAMES):
        try:
            if frame.name == assumed_names.CONDITION_WAIT and frame.file.endswith(assumed_names.THREADING_FILE):
                condition = locals_of(runtime, frame).get("self", 0)
                given_up.add(runtime.dicts.attribute(condition, assumed_names.CONDITION_LOCK) if condition else 0)
            locks = [lock for each in _entered_managers(runtime, frame) if (lock := lock_of(runtime, each))]
            locks = [lock for lock in locks if lock.address not in given_up]
            names = py.PyCodeObject(runtime.space, frame.code).co_names if locks else 0
            mentioned = runtime.objects.tuple_items(names) if locks else ()
            if not any(runtime.objects.text_equals(name, "release") for name in mentioned):
                held.extend(locks)
        except GdbextError:
            continue
    return held


def entered_objects(runtime: PythonRuntime, state: ThreadState) -> list[int]:
    """All objects inside whose ``with`` block the thread is: a Semaphore for example. Raises nothing."""
    objects: list[int] = []
    for _, frame in _holding_frames(runtime, state, _WITH_FRAMES):
        with suppress(GdbextError):
            objects.extend(_entered_managers(runtime, frame))
    return objects


def entered_in(runtime: PythonRuntime, frame: PythonFrame) -> list[int]:
    """The context managers inside whose ``with`` or ``async with`` block one frame is, the outermost first, with those
    of the generators that some of them are. Raises MemoryFault, BadData."""
    return [each for inner in (frame, *_generators(runtime, frame)) for each in _entered_managers(runtime, inner)]


_NESTED = 3  # generators inside of one another's ``with`` blocks that are followed


def _holding_frames(runtime: PythonRuntime, state: ThreadState, limit: int) -> Iterator[tuple[int, PythonFrame]]:
    """(level from 0 on, frame) of the innermost frames, each followed by the generators in whose ``with`` block it is,
    which have the level of its caller."""
    for level, frame in enumerate(runtime.frames.stack(state).frames[:limit]):
        yield level, frame
        for inner in _generators(runtime, frame):
            yield level + 1, inner


def _generators(runtime: PythonRuntime, frame: PythonFrame, depth: int = _NESTED) -> Iterator[PythonFrame]:
    """The suspended frames of generators that are context managers of the frame's ``with`` blocks. Raises nothing."""
    try:
        managers = _entered_managers(runtime, frame)
    except GdbextError:
        return
    for manager in managers:
        inner = _generator_frame(runtime, manager)
        if inner:
            yield inner
            yield from _generators(runtime, inner, depth - 1) if depth else ()


def _generator_frame(runtime: PythonRuntime, manager: int) -> PythonFrame | None:
    with suppress(GdbextError):
        if runtime.objects.type_of(manager).name in assumed_names.GENERATOR_MANAGERS:
            generator = runtime.dicts.attribute(manager, assumed_names.MANAGED_GENERATOR)
            return generator_frame(runtime, generator) if generator else None
    return None


def lock_of(runtime: PythonRuntime, manager: int) -> LockState | None:
    """The lock that a context manager is, or that a Condition has; None for any other."""
    lock = read_lock(runtime, manager)
    if lock:
        return lock
    own = runtime.dicts.attribute(manager, assumed_names.CONDITION_LOCK)
    is_condition = own and runtime.dicts.attribute(manager, assumed_names.CONDITION_WAITERS)
    return read_lock(runtime, own) if is_condition else None


def _entered_managers(runtime: PythonRuntime, frame: PythonFrame) -> Sequence[int]:
    """The context managers whose ``with`` block the frame is in, the outermost first, each followed by those that it
    has entered if it is an ExitStack. Raises MemoryFault, BadData."""
    interpreted = isinstance(runtime.layout.abi.frames, InterpreterFrames)
    if interpreted and not _exception_table(runtime, frame.code):  # most functions have no ``with`` and no ``try``
        return ()
    return _read_entered(runtime, frame)


@once
def _read_entered(runtime: PythonRuntime, frame: PythonFrame) -> Sequence[int]:
    managers: list[int] = []
    for _, manager in _entered_slots(runtime, frame):
        managers += [manager, *_exit_stack_managers(runtime, manager)]
    return tuple(managers)


def _exit_stack_managers(runtime: PythonRuntime, stack: int) -> Iterator[int]:
    """The context managers that a contextlib.ExitStack has entered: it keeps (True, their bound ``__exit__``)."""
    with suppress(GdbextError):
        if runtime.objects.type_of(stack).name not in assumed_names.EXIT_STACKS:
            return
        exits = runtime.dicts.attribute(stack, assumed_names.STACKED_EXITS)
        for row in deque_items(runtime, exits, _DEPTH_LIMIT)[1] if exits else ():
            method = runtime.objects.tuple_items(row)[1]
            if runtime.objects.type_of(method).name == "method":
                yield py.PyMethodObject(runtime.space, method).im_self


def _entered_slots(runtime: PythonRuntime, frame: PythonFrame) -> Iterator[tuple[int, int]]:
    """(slot of the value stack with its ``__exit__``, context manager) of the ``with`` blocks that the frame is in."""
    form = runtime.layout.abi.frames
    if isinstance(form, FrameObjects):
        blocks = _blocks(runtime, frame)
        depth = blocks[-1].b_level if blocks else 0
    else:
        depth = max(_depths(runtime, frame, form), default=0)
    if depth <= 0:
        return
    previous = 0
    for slot, address in enumerate(objects_at(runtime, value_stack(runtime, frame), min(depth, _DEPTH_LIMIT))):
        manager = _manager_of_exit(runtime, previous, address)
        if manager:
            yield slot, manager
        previous = address


def _manager_of_exit(runtime: PythonRuntime, previous: int, address: int) -> int:
    """The object whose ``__exit__`` is in a slot: bound to it, or as a function in the slot before it; else 0."""
    if address & 7 or address < 4096:
        return 0
    form, space = runtime.layout.abi.frames, runtime.space
    with suppress(GdbextError):  # what is left over on a stack need not be an object
        if isinstance(form, InterpreterFrames) and form.exit_form is ExitForm.FUNCTION_AND_SELF:
            return address if _is_exit(runtime, previous) else 0
        kind = runtime.objects.type_of(address).name
        if kind == "builtin_function_or_method":
            return py.PyCFunctionObject(space, address).m_self
        if kind == "method" and _is_exit(runtime, py.PyMethodObject(space, address).im_func):
            return py.PyMethodObject(space, address).im_self
    return 0


def _is_exit(runtime: PythonRuntime, address: int) -> bool:
    """A function, or a built-in type's or Cython's method, called ``__(a)exit__``. Raises MemoryFault, BadData."""
    kind = runtime.objects.type_of(address).name if address else ""
    if kind.endswith(_CYTHON_FUNCTION):
        method = py.PyCFunctionObject(runtime.space, address).m_ml
        return runtime.memory.cstring(runtime.memory.u64(method), _NAME_LIMIT) in (b"__exit__", b"__aexit__")
    if kind not in _FUNCTION_NAMES:
        return False
    name = py.PyObject(runtime.space, address).value(_FUNCTION_NAMES[kind])
    return any(runtime.objects.text_equals(name, each) for each in ("__exit__", "__aexit__"))


def where_entered(runtime: PythonRuntime, state: ThreadState, word: int) -> PythonFrame | None:
    """The outermost frame in whose ``with`` block the lock with that word is held, with the line of the ``with``; else
    the only frame that has called the lock's ``acquire``, with the line of the only such call. Raises nothing.

    The line of a ``with`` is known up to 3.10 by the frame's own block, which has its handler. From 3.11 on it is known
    if the frame is in the very block, and in no ``try`` or other ``with`` inside of it: then the entry of the
    exception table that it is in is that of the ``with`` (SETUP_WITH keeps the last instruction, SETUP_FINALLY does
    not: Python/assemble.c), and the first entry with its handler begins behind the instruction that entered.
    """
    outermost: PythonFrame | None = None
    frames = [frame for _, frame in _holding_frames(runtime, state, _WITH_FRAMES)]
    for frame in frames:
        with suppress(GdbextError):
            for slot, manager in _entered_slots(runtime, frame):
                lock = lock_of(runtime, manager)
                if lock and lock.word == word:
                    outermost = frame._replace(line=_line_of_with(runtime, frame, slot))
                    break
    if outermost:
        return outermost if outermost.line is not None else None
    calls = [frame._replace(line=line) for frame in frames for line in _lines_of_acquire(runtime, frame, word)]
    return calls[0] if len(calls) == 1 else None


def _lines_of_acquire(runtime: PythonRuntime, frame: PythonFrame, word: int) -> list[int]:
    """Lines with ``lock.acquire()`` of that lock that the code has passed, without a ``release`` after them."""
    if "acquire" not in used_names(runtime, frame.code):
        return []
    lines: dict[int, None] = {}
    own = variables(runtime, frame)
    for call in called_methods(runtime, frame):
        if call.method in ("acquire", "release") and call.line is not None:
            lock = _called_lock(runtime, own, call)
            if lock and lock.word == word:
                lines = {**lines, call.line: None} if call.method == "acquire" else {}
    return list(lines)


def _called_lock(runtime: PythonRuntime, own: Mapping[str, int], call: CalledMethod) -> LockState | None:
    """The taken lock whose method was called, by what its name means now, else None. ``own``: the frame's variables."""
    owner = attributes(runtime, own.get(call.outer, 0)) if call.outer else own
    lock = read_lock(runtime, owner.get(call.owner, 0))
    return lock if lock and lock.locked else None


def _line_of_with(runtime: PythonRuntime, frame: PythonFrame, slot: int) -> int | None:
    form = runtime.layout.abi.frames
    if not isinstance(form, InterpreterFrames):
        blocks = (block.b_handler for block in _blocks(runtime, frame) if block.b_level == slot + 1)
        return next(filter(None, (line_of_block(runtime, frame, handler) for handler in blocks)), None)
    code = runtime.codes.get(frame.code)
    at = code.offset_of(py.PyInterpreterFrame(runtime.space, frame.address).value(form.instruction))
    table = _exception_table(runtime, frame.code)
    entries = [(target, depth) for start, end, target, depth in table if start <= at < end]
    if len(entries) != 1 or entries[0][1] != (slot + 1) << 1 | 1:
        return None
    return code.line(min(start for start, _, target, _ in table if target == entries[0][0]))


def _depths(runtime: PythonRuntime, frame: PythonFrame, form: InterpreterFrames) -> list[int]:
    """Numbers of stack slots that are certainly in use: by the exception table entries around the instruction."""
    instruction = py.PyInterpreterFrame(runtime.space, frame.address).value(form.instruction)
    at = runtime.codes.get(frame.code).offset_of(instruction)
    return [depth >> 1 for start, end, _, depth in _exception_table(runtime, frame.code) if start <= at < end]


@once
def _exception_table(runtime: PythonRuntime, code: int) -> Sequence[tuple[int, int, int, int]]:
    table = py.PyCodeObject(runtime.space, code).co_exceptiontable
    return tuple(exception_entries(runtime.objects.bytes(table, _TABLE_LIMIT)))


def _blocks(runtime: PythonRuntime, frame: PythonFrame) -> list[py.PyTryBlock]:
    """The blocks that a frame of 3.8 to 3.10 is in, the innermost last."""
    structure = py.PyFrameObject(runtime.space, frame.address)
    count = structure.f_iblock
    return list(py.PyTryBlock.array(runtime.space, structure.f_blockstack, count)) if 0 < count <= _BLOCKS else []


def exception_entries(table: bytes) -> Iterator[tuple[int, int, int, int]]:
    """(start, end, handler, depth << 1 | lasti) of each entry of the exception table; places are byte offsets from the
    first instruction.

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

    with suppress(IndexError):
        while position < len(table):
            start, length, target, depth = number(), number(), number(), number()
            yield start * 2, (start + length) * 2, target * 2, depth


_FRAMES = 64  # innermost Python frames that are read


def held_in_try(runtime: PythonRuntime, state: ThreadState) -> Iterator[tuple[int, LockState]]:
    """(level of a frame, taken lock that it has at hand) for frames inside a ``try`` or ``with`` block whose code calls
    ``acquire`` and ``release``. Level 0 is the innermost frame, which may as well be about to take the lock. Raises
    nothing."""
    form = runtime.layout.abi.frames
    for level, frame in _holding_frames(runtime, state, _FRAMES):
        try:
            if not used_names(runtime, frame.code) >= {"acquire", "release"}:
                continue
            if isinstance(form, FrameObjects):
                is_protected = 0 < py.PyFrameObject(runtime.space, frame.address).f_iblock <= _BLOCKS
            else:
                is_protected = bool(_depths(runtime, frame, form))
        except GdbextError:
            continue
        own = variables(runtime, frame) if is_protected else {}
        inner = attributes(runtime, own["self"]).values() if "self" in own else ()
        for address in {*own.values(), *inner}:
            lock = read_lock(runtime, address)
            if lock and lock.locked:
                yield level, lock


def held_after_acquire(runtime: PythonRuntime, state: ThreadState) -> Iterator[LockState]:
    """Taken locks that frames have taken by a statement ``lock.acquire()``, after which the code has come without a
    ``release`` of anything; the call that still waits is none of those. Raises nothing."""
    for frame in runtime.frames.stack(state).frames[:_FRAMES]:
        if "acquire" not in used_names(runtime, frame.code):
            continue
        calls: list[CalledMethod] = []
        for call in called_methods(runtime, frame):
            if call.method == "acquire" and call.is_statement:
                calls.append(call)
            elif call.method == "release":
                calls.clear()
        own = variables(runtime, frame) if calls else {}
        yield from (lock for call in calls if (lock := _called_lock(runtime, own, call)))
