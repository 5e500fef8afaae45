"""The names that the innermost loop around a Python frame's instruction (from a jump's target to the jump) loads, and
the methods that the frame has called before.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi import CodeForm, FrameObjects, bytecode
from gdbext.cpython.abi.bytecode import BYTECODES, Load, LoadKind
from gdbext.cpython.abi.python_structures import PyCodeObject
from gdbext.cpython.objects.code import CODE_UNIT
from gdbext.cpython.objects.py_space import PySpace, once
from gdbext.cpython.threads.frame_variables import instruction
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.cpython.threads.frame_reader import PythonFrame

_CODE_LIMIT = 1 << 16  # bytes of a function's code that are followed
_NAMES = 2_000


class NamedMember(NamedTuple):
    """``owner.name`` or ``outer.owner.name`` in code: an attribute or method. ``kind``: how the owner is loaded; if as
    an ATTRIBUTE, it is one of ``outer``, which is loaded as ``outer_kind`` ("" and None if it has no name)."""

    name: str
    owner: str
    kind: LoadKind
    outer: str = ""
    outer_kind: LoadKind | None = None


class LoopNames(NamedTuple):
    """The names that code loads: ``variables`` are local, enclosing and global ones, ``attributes`` all attributes and
    methods; ``pairs`` are (owner, attribute) if the owner has a name; ``values`` the pairs that are taken as a value at
    least once, and so may be called by others; ``members`` the pairs with the kinds of their owners; ``texts`` the
    addresses of str constants that are first arguments, as (function, address), ``arguments`` the variables and
    attributes that are, as (function, name). ``open`` for writing is not among these functions."""

    variables: frozenset[str]
    attributes: frozenset[str]
    pairs: frozenset[tuple[str, str]]
    values: frozenset[tuple[str, str]] = frozenset()
    members: frozenset[NamedMember] = frozenset()
    texts: frozenset[tuple[str, int]] = frozenset()
    arguments: frozenset[tuple[str, str]] = frozenset()

    @property
    def names(self) -> frozenset[str]:
        return self.variables | self.attributes

    def __or__(self, other: LoopNames) -> LoopNames:
        """The names of both pieces of code."""
        return LoopNames(*(own | others for own, others in zip(self, other)))  # type: ignore[arg-type]


def loop_names(runtime: PySpace, frame: PythonFrame) -> LoopNames | None:
    """The names that the innermost loop around the frame's instruction loads, those in its lambdas, generators and
    comprehensions included; None if it is in no loop, or the code cannot be followed."""
    form = BYTECODES.get(runtime.layout.abi.version)
    if not form:
        return None
    try:
        code, at = _bytes_of(runtime, frame.code), _offset_of(runtime, frame)
        loads = bytecode.loads_of_loop(form, code, at)
        if loads is None:
            return None
        names = _load_names(loads, _NameTables(runtime, frame.code))
        names = _with_arguments(runtime, frame.code, bytecode.first_arguments(form, code, at), names)
        return _with_inner(runtime, frame.code, bytecode.constants(form, code, at), names)
    except (GdbextError, IndexError):
        return None


def is_in_loop_of(runtime: PySpace, frame: PythonFrame, at: int) -> bool:
    """True if the instruction at byte ``at`` of the frame's code is in a loop around the frame's current one."""
    form = BYTECODES.get(runtime.layout.abi.version)
    try:
        own = _offset_of(runtime, frame) if form else 0
        return bool(form and bytecode.is_in_loop(form, _bytes_of(runtime, frame.code), own, at))
    except (GdbextError, IndexError):
        return False


def _with_inner(runtime: PySpace, code: int, indexes: Sequence[int], names: LoopNames) -> LoopNames:
    """``names`` with those of the code objects among the constants of ``code`` at these indexes of co_consts."""
    with suppress(GdbextError):  # the names of the function itself are an answer, too
        items = runtime.objects.tuple_items(PyCodeObject(runtime.space, code).co_consts, _NAMES) if indexes else ()
        used = [items[index] for index in indexes if index < len(items)]
        kinds = [(runtime.objects.type_of(constant).name, constant) for constant in used]
        for inner in [constant for kind, constant in kinds if kind == "code"][:16]:
            names |= names_of_code(runtime, inner) or names
    return names


def _with_arguments(
    runtime: PySpace, code: int, calls: Sequence[bytecode.FirstArgument], names: LoopNames
) -> LoopNames:
    """``names`` with the first arguments of these calls of ``code``."""
    tables, constants = _NameTables(runtime, code), _Constants(runtime, code)
    texts, arguments = set[tuple[str, int]](), set[tuple[str, str]]()
    for call in calls:
        function = tables.name(call.function)
        if function == "open" and call.second is not None and constants.opens_for_writing(call.second):
            continue
        if call.value:
            arguments.add((function, tables.name(call.value)))
        elif call.constant is not None and constants.text(call.constant):
            texts.add((function, constants.address(call.constant)))
    return names._replace(texts=frozenset(texts), arguments=frozenset(arguments))


class _Constants:
    """The constants of a code object, by their index in co_consts; a recording may lack them."""

    def __init__(self, runtime: PySpace, code: int) -> None:
        self._runtime = runtime
        self._code = code

    @cached_property
    def _items(self) -> Sequence[int]:
        with suppress(GdbextError):
            constants = PyCodeObject(self._runtime.space, self._code).co_consts
            return self._runtime.objects.tuple_items(constants, _NAMES)
        return ()

    def address(self, index: int) -> int:
        """The address of the object, 0 if unknown."""
        return self._items[index] if index < len(self._items) else 0

    def text(self, index: int) -> str:
        """The text of a str, "" for another object, and if it cannot be read."""
        address, objects = self.address(index), self._runtime.objects
        with suppress(GdbextError):
            return objects.text(address, 4096) if address and objects.type_of(address).name == "str" else ""
        return ""

    def opens_for_writing(self, index: int) -> bool:
        """True if the mode of open() that this constant is may allow to write."""
        text = self.text(index)
        return not text or bool(set(text) & set("wax+"))


def names_with_inner(runtime: PySpace, code: int) -> LoopNames | None:
    """The names of ``names_of_code``, with those in lambdas, generators and comprehensions of the code."""
    form, names = BYTECODES.get(runtime.layout.abi.version), names_of_code(runtime, code)
    try:
        numbers = bytecode.constants(form, _bytes_of(runtime, code)) if form else ()
        return _with_inner(runtime, code, numbers, names) if names else None
    except (GdbextError, IndexError):
        return None


@once
def names_of_code(runtime: PySpace, code: int) -> LoopNames | None:
    """The names that the code object at an address loads anywhere; None if the code cannot be followed."""
    form = BYTECODES.get(runtime.layout.abi.version)
    try:
        loads = bytecode.all_loads(form, _bytes_of(runtime, code)) if form else None
        if not form or loads is None:
            return None
        names = _load_names(loads, _NameTables(runtime, code))
        return _with_arguments(runtime, code, bytecode.first_arguments(form, _bytes_of(runtime, code)), names)
    except (GdbextError, IndexError):
        return None


class CalledMethod(NamedTuple):
    """A method ``outer.owner.method`` that code loads; ``outer`` is "" if the owner is a variable. ``is_statement``: it
    is called without arguments, and its result is discarded. ``line``: None if unknown."""

    method: str
    owner: str
    outer: str
    is_statement: bool
    line: int | None = None


def called_methods(runtime: PySpace, frame: PythonFrame) -> list[CalledMethod]:
    """The methods that the code loads before the frame's instruction, in order; empty if it cannot be followed."""
    try:
        return _methods_before(runtime, frame.code, _offset_of(runtime, frame))
    except (GdbextError, IndexError):
        return []


@once
def _methods_before(runtime: PySpace, code: int, at: int) -> list[CalledMethod]:
    """``called_methods`` of the code object at ``code`` before byte ``at``. Raises GdbextError, IndexError."""
    form = BYTECODES.get(runtime.layout.abi.version)
    tables, lines = _NameTables(runtime, code), runtime.codes.get(code)
    methods = []
    calls = bytecode.methods_before(form, _bytes_of(runtime, code), at) if form else None
    for call in calls or ():
        outer = tables.name(call.outer) if call.outer else ""
        names = tables.name(call.method), tables.name(call.owner), outer
        methods.append(CalledMethod(*names, call.is_statement, lines.line(call.offset)))
    return methods


def line_of_block(runtime: PySpace, frame: PythonFrame, handler: int) -> int | None:
    """The line of the ``with`` whose exception handler is at byte ``handler`` of the code (3.8 to 3.10). Raises
    GdbextError."""
    form = BYTECODES.get(runtime.layout.abi.version)
    at = bytecode.with_start(form, _bytes_of(runtime, frame.code), handler) if form else None
    return runtime.codes.get(frame.code).line(at) if at is not None else None


def _offset_of(runtime: PySpace, frame: PythonFrame) -> int:
    """The byte offset of the frame's instruction. Raises GdbextError."""
    abi, position = runtime.layout.abi, instruction(runtime, frame)
    if isinstance(abi.frames, FrameObjects):
        return position * abi.frames.lasti_unit
    return runtime.codes.get(frame.code).offset_of(position)


def _bytes_of(runtime: PySpace, code: int) -> bytes:
    """The instructions of a code object. Raises GdbextError."""
    structure = PyCodeObject(runtime.space, code)
    if runtime.layout.abi.code_form is CodeForm.INLINE:
        size = structure.ob_size * CODE_UNIT
        return runtime.memory.read(runtime.codes.get(code).bytecode, min(size, _CODE_LIMIT))
    return runtime.objects.bytes(structure.co_code, _CODE_LIMIT)


class _NameTables:
    """The tuples of names of a code object that the operands of its load instructions index. Raises GdbextError."""

    def __init__(self, runtime: PySpace, code: int) -> None:
        objects, tables = runtime.objects, []
        for member in (PyCodeObject.co_names, *runtime.layout.abi.local_names):
            items = PyCodeObject(runtime.space, code).value(member)
            tables.append([objects.text(each, 128) for each in objects.tuple_items(items, _NAMES)] if items else [])
        names, *local_tables = tables
        self._tables: dict[LoadKind, Sequence[str]] = dict.fromkeys(LoadKind, names)
        self._tables[LoadKind.FAST] = local_tables[0]
        self._tables[LoadKind.CELL] = [*chain(*(local_tables[1:] or local_tables))]

    def name(self, load: Load) -> str:
        """The name that an instruction loads. Raises IndexError."""
        return self._tables[load.kind][load.number]


def _load_names(loads: Sequence[Load], tables: _NameTables) -> LoopNames:
    """The names of a sequence of load instructions; one that ``follows`` another loads an attribute of its value."""
    variables, attributes = set[str](), set[str]()
    values, members = set[tuple[str, str]](), set[NamedMember]()
    nothing = "", LoadKind.ATTRIBUTE
    owner = outer = nothing  # (name, kind) of the last load, and of the one whose attribute that was
    for load in loads:
        name = tables.name(load)
        is_member = load.kind is LoadKind.ATTRIBUTE and load.follows
        (attributes if load.kind is LoadKind.ATTRIBUTE else variables).add(name)
        if is_member:
            members.add(NamedMember(name, *owner, outer[0], outer[1] if outer[0] else None))
            values |= {(owner[0], name)} if load.is_value else set()
        outer = owner if is_member else nothing
        owner = (name, load.kind)
    pairs = frozenset((member.owner, member.name) for member in members)
    return LoopNames(frozenset(variables), frozenset(attributes), pairs, frozenset(values), frozenset(members))
