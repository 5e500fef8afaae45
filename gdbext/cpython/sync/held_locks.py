"""Locks that a thread holds by ``with lock:`` or by ``lock.acquire()`` before a ``try``, read from its Python frames.

While the body of a ``with`` runs, the bound ``__exit__`` of its lock lies on the frame's value stack. Words above the
stack's top are left over from earlier calls. Slots in use are those below the depth to which the exception table
(InternalDocs/exception_handling.md of 3.13) or the block stack (PyTryBlock, cpython/frameobject.h of 3.8) unwinds for
the current instruction. The block begins after ``__enter__`` has returned, so a thread that waits for the lock is not
counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
_DEPTH_LIMIT = 1000
_FUNCTION_NAMES = {"method_descriptor": py.PyDescrObject.d_name, "function": py.PyFunctionObject.func_name}
"""Type of a function object → where its name is."""
_BLOCKS = 20  # most blocks of a code object: CO_MAXBLOCKS (cpython/code.h)


def held_locks(runtime: PythonRuntime, state: ThreadState) -> list[LockState]:
    """The locks (Lock, RLock, also those of a Condition) inside whose ``with`` block the thread is, innermost first,
    without those that Condition.wait has released and those of functions that mention ``release``. Raises nothing."""
    held: list[LockState] = []
    released: set[int] = set()  # addresses of locks of Conditions
    for _, frame in _holding_frames(runtime, state, _WITH_FRAMES):
        with suppress(GdbextError):
            if frame.name == assumed_names.CONDITION_WAIT and frame.file.endswith(assumed_names.THREADING_FILE):
                condition = locals_of(runtime, frame).get("self", 0)
                released.add(runtime.dicts.attribute(condition, assumed_names.CONDITION_LOCK) if condition else 0)
            locks = filter(None, (lock_of(runtime, manager) for manager in _entered_managers(runtime, frame)))
            taken = [lock for lock in locks if lock.address not in released]
            if taken:
                names = runtime.objects.tuple_items(py.PyCodeObject(runtime.space, frame.code).co_names)
                if not any(runtime.objects.text_equals(name, "release") for name in names):
                    held += taken
    return held


def entered_objects(runtime: PythonRuntime, state: ThreadState) -> list[int]:
    """Addresses of the context managers inside whose ``with`` blocks the thread is, such as a Semaphore. Raises
    nothing."""
    objects: list[int] = []
    for _, frame in _holding_frames(runtime, state, _WITH_FRAMES):
        with suppress(GdbextError):
            objects.extend(_entered_managers(runtime, frame))
    return objects


def entered_in(runtime: PythonRuntime, frames: Iterable[PythonFrame]) -> tuple[int, ...]:
    """Addresses of the context managers inside whose ``with`` or ``async with`` blocks the frames of a coroutine are;
    of a contextlib.contextmanager also those inside its generator. Raises nothing."""
    managers: dict[int, None] = {}
    for frame in frames:
        with suppress(GdbextError):
            for inner in (frame, *_generators(runtime, frame)):
                managers.update(dict.fromkeys(_entered_managers(runtime, inner)))
    return tuple(managers)


def _holding_frames(runtime: PythonRuntime, state: ThreadState, limit: int) -> Iterator[tuple[int, PythonFrame]]:
    """(index in the stack, frame) of the innermost ``limit`` frames, each followed by the frames of the generators in
    whose ``with`` block it is, which count as its callers."""
    for level, frame in enumerate(runtime.frames.stack(state).frames[:limit]):
        yield level, frame
        for inner in _generators(runtime, frame):
            yield level + 1, inner


def _generators(runtime: PythonRuntime, frame: PythonFrame, depth: int = 3) -> Iterator[PythonFrame]:
    """The suspended frames of the generators of contextlib.contextmanager in whose ``with`` blocks the frame is, and
    of generators in whose blocks these are, ``depth`` levels deep: their own locks are held, too. Raises nothing."""
    try:
        managers = _entered_managers(runtime, frame)
    except GdbextError:
        return
    for manager in managers:
        inner = None
        with suppress(GdbextError):
            if runtime.objects.type_of(manager).name in assumed_names.GENERATOR_MANAGERS:
                generator = runtime.dicts.attribute(manager, assumed_names.MANAGED_GENERATOR)
                inner = generator_frame(runtime, generator) if generator else None
        if inner:
            yield inner
            yield from _generators(runtime, inner, depth - 1) if depth else ()


def lock_of(runtime: PythonRuntime, manager: int) -> LockState | None:
    """The lock that the context manager at ``manager`` is, or that a Condition there has; None for any other."""
    lock = read_lock(runtime, manager)
    own = 0 if lock else runtime.dicts.attribute(manager, assumed_names.CONDITION_LOCK)
    is_condition = own and runtime.dicts.attribute(manager, assumed_names.CONDITION_WAITERS)
    return read_lock(runtime, own) if is_condition else lock


def _entered_managers(runtime: PythonRuntime, frame: PythonFrame) -> Sequence[int]:
    """Addresses of the context managers in whose ``with`` block the frame is, outermost first, each followed by those
    that it has entered if it is an ExitStack. Raises MemoryFault, BadData."""
    has_table = isinstance(runtime.layout.abi.frames, InterpreterFrames)
    if has_table and not _exception_table(runtime, frame.code):  # most functions have no ``with`` and no ``try``
        return ()
    return _read_entered(runtime, frame)


@once
def _read_entered(runtime: PythonRuntime, frame: PythonFrame) -> Sequence[int]:
    """``_entered_managers`` of a frame that may have some, read once."""
    managers: list[int] = []
    for _, manager in _entered_slots(runtime, frame):
        managers.append(manager)
        with suppress(GdbextError):
            if runtime.objects.type_of(manager).name in assumed_names.EXIT_STACKS:
                # it keeps (True, the bound ``__exit__``) of each manager that it has entered
                exits = runtime.dicts.attribute(manager, assumed_names.STACKED_EXITS)
                for row in deque_items(runtime, exits, _DEPTH_LIMIT)[1] if exits else ():
                    method = runtime.objects.tuple_items(row)[1]
                    if runtime.objects.type_of(method).name == "method":
                        managers.append(py.PyMethodObject(runtime.space, method).im_self)
    return tuple(managers)


def _entered_slots(runtime: PythonRuntime, frame: PythonFrame) -> Iterator[tuple[int, int]]:
    """(index of the value stack slot with its ``__exit__``, address of the context manager) of each ``with`` block that
    the frame is in, outermost first. Raises MemoryFault, BadData."""
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
    """Address of the context manager if the object at ``address``, in a slot of the value stack, is its bound
    ``__exit__``, or since 3.14 the manager after the function ``__exit__`` in the ``previous`` slot; else 0."""
    if address & 7 or address < 4096:
        return 0
    form, space = runtime.layout.abi.frames, runtime.space
    with suppress(GdbextError):  # a word that is left over on a stack need not be an object
        if isinstance(form, InterpreterFrames) and form.exit_form is ExitForm.FUNCTION_AND_SELF:
            return address if _is_exit(runtime, previous) else 0
        kind = runtime.objects.type_of(address).name
        if kind == "builtin_function_or_method":
            return py.PyCFunctionObject(space, address).m_self
        if kind == "method" and _is_exit(runtime, py.PyMethodObject(space, address).im_func):
            return py.PyMethodObject(space, address).im_self
    return 0


def _is_exit(runtime: PythonRuntime, address: int) -> bool:
    """True for a function, or a method of a built-in type or of Cython, that is named ``__exit__`` or ``__aexit__``.
    Raises MemoryFault, BadData."""
    kind = runtime.objects.type_of(address).name if address else ""
    if kind.endswith("cython_function_or_method"):  # begins as a PyCFunctionObject (Cython/Utility/CythonFunction.c)
        method = py.PyCFunctionObject(runtime.space, address).m_ml
        return runtime.memory.cstring(runtime.memory.u64(method), 64) in (b"__exit__", b"__aexit__")
    if kind not in _FUNCTION_NAMES:
        return False
    name = py.PyObject(runtime.space, address).value(_FUNCTION_NAMES[kind])
    return any(runtime.objects.text_equals(name, each) for each in ("__exit__", "__aexit__"))


def where_entered(runtime: PythonRuntime, state: ThreadState, word: int) -> PythonFrame | None:
    """The outermost frame that holds the lock with that ``word`` by a ``with``, else the only one that has called its
    ``acquire``; ``line`` is that of the ``with`` or the call. None if it is not clear. Raises nothing."""
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


def _lines_of_acquire(runtime: PythonRuntime, frame: PythonFrame, word: int) -> set[int]:
    """Lines of the ``acquire()`` calls of the lock with that ``word`` that the code has passed since its last
    ``release()``."""
    if "acquire" not in used_names(runtime, frame.code):
        return set()
    lines: set[int] = set()
    own = variables(runtime, frame)
    for call in called_methods(runtime, frame):
        if call.method in ("acquire", "release") and call.line is not None:
            lock = _called_lock(runtime, own, call)
            if lock and lock.word == word:
                lines = {*lines, call.line} if call.method == "acquire" else set()
    return lines


def _called_lock(runtime: PythonRuntime, own: Mapping[str, int], call: CalledMethod) -> LockState | None:
    """The lock whose method is called, by the present value of its variable; None if that is no lock, or a free one.
    ``own``: the frame's variables, name → address."""
    owner = attributes(runtime, own.get(call.outer, 0)) if call.outer else own
    lock = read_lock(runtime, owner.get(call.owner, 0))
    return lock if lock and lock.locked else None


def _line_of_with(runtime: PythonRuntime, frame: PythonFrame, slot: int) -> int | None:
    """The line of the ``with`` whose ``__exit__`` is in that slot of the value stack; None unless it can be proven.

    Up to 3.10 the frame's block has the handler. Since 3.11 the frame must be in no ``try`` or other ``with`` inside of
    it: then its entry of the exception table is that of the ``with`` (only SETUP_WITH keeps the last instruction:
    Python/assemble.c), and the first entry with the same handler begins after the instruction that entered.
    """
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
    """The number of stack slots in use, according to each exception table entry around the frame's instruction."""
    instruction = py.PyInterpreterFrame(runtime.space, frame.address).value(form.instruction)
    at = runtime.codes.get(frame.code).offset_of(instruction)
    return [depth >> 1 for start, end, _, depth in _exception_table(runtime, frame.code) if start <= at < end]


def _blocks(runtime: PythonRuntime, frame: PythonFrame) -> list[py.PyTryBlock]:
    """The blocks that a frame of 3.8 to 3.10 is in, the innermost last."""
    structure = py.PyFrameObject(runtime.space, frame.address)
    count = structure.f_iblock
    return list(py.PyTryBlock.array(runtime.space, structure.f_blockstack, count)) if 0 < count <= _BLOCKS else []


@once
def _exception_table(runtime: PythonRuntime, code: int) -> Sequence[tuple[int, int, int, int]]:
    """(start, end, handler, depth << 1 | lasti) of each entry of a code object's exception table; the first three are
    byte offsets from the first instruction. Raises MemoryFault, BadData."""
    # An entry is start, length and target in code units of two bytes, then depth << 1 | lasti; a number is in groups of
    # six bits, most significant first, and bit 6 says that more follow.
    numbers, value = [], 0
    table = py.PyCodeObject(runtime.space, code).co_exceptiontable
    for byte in runtime.objects.bytes(table, 1 << 20):
        value = value << 6 | byte & 63
        if not byte & 64:
            numbers.append(value)
            value = 0
    entries = zip(numbers[::4], numbers[1::4], numbers[2::4], numbers[3::4])
    return tuple((start * 2, (start + length) * 2, target * 2, depth) for start, length, target, depth in entries)


_FRAMES = 64  # innermost Python frames that are read


def held_in_try(runtime: PythonRuntime, state: ThreadState) -> Iterator[tuple[int, LockState]]:
    """(index of a frame in the stack, taken lock among its variables and the attributes of ``self``) of each frame that
    is inside a ``try`` or ``with`` block and calls ``acquire`` and ``release``: it has most likely taken the lock on
    its way there. The innermost frame, 0, may as well be about to take it. Raises nothing."""
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
    """Taken locks whose ``lock.acquire()`` is a statement that a frame has passed, with no ``release()`` of anything
    since; without the call in which the frame still waits. Raises nothing."""
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
