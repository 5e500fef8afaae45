"""A Python object of the target as a value, as ``Struct`` is one for C++. Reading it never raises.

    own = stack.locals_of("_all_gather", RPC_FILE)
    own["leader_name"].str(), [worker.str() for worker in own["states"]["gathered_objects"].keys()]

A value that is not there, or that cannot be read, is missing: it is falsy, all that is read of it is missing or empty,
and ``why`` is the reason. Its ``fault`` is the error that kept it from being read, and None where it is not there.
Containers know their fault, too. ``checked()`` and ``read()`` raise the fault: for answers that must be whole.
"""

from __future__ import annotations

import builtins
from itertools import chain, islice
from typing import TYPE_CHECKING, TypeVar

from gdbext.cpython.abi import python_structures as py
from gdbext.cpython.objects import (
    FLAG_DICT,
    FLAG_HEAP_TYPE,
    FLAG_LIST,
    FLAG_TUPLE,
    FLAG_TYPE,
    ITEM_LIMIT,
    TEXT_LIMIT,
    Item,
    slot_attributes,
)
from gdbext.cpython.objects.object_items import QUEUE_TYPE, c_member, deque_items, queued, set_items
from gdbext.errors import BadData, GdbextError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Union

    from gdbext.cpython.objects.code import Code, PythonFunction
    from gdbext.cpython.objects.py_space import PySpace

    Plain = Union[bool, int, float, str, None]

T = TypeVar("T")

_VARIABLES = 10_000
"""Most variables that are read at once, where nobody gives a limit."""
_BASES = 64
_PARTS = 32
_CELLS = 16
"""Most variables of a closure."""
_BUILTIN = "builtin_function_or_method"
_METHOD = 8
"""Offset of ml_meth in PyMethodDef (Include/methodobject.h)."""


class PyRef:
    """The object at an address; 0 for a missing one. Equal are references to the same object."""

    __slots__ = ("address", "fault", "name", "python")

    def __init__(
        self,
        python: PySpace,
        address: builtins.int,
        fault: GdbextError | None = None,
        name: builtins.str = "",
    ) -> None:
        self.python = python
        self.address = address
        self.fault = fault
        self.name = name
        """The name by which it was looked for, of a missing value."""

    def __bool__(self) -> bool:
        return self.address != 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PyRef) and self.address == other.address

    def __hash__(self) -> builtins.int:
        return hash(self.address)

    def __repr__(self) -> builtins.str:
        return f"<{self.type or 'object'} at {self.address:#x}>" if self.address else f"<missing: {self.why}>"

    @property
    def why(self) -> builtins.str:
        """The reason why it is missing; "" for a value that is there."""
        if self.address:
            return ""
        if self.fault:
            return self.fault.what
        return f"it has no {self.name}" if self.name else "it is not there"

    @property
    def is_absent(self) -> bool:
        """It is missing, and not because something could not be read."""
        return not self.address and not self.fault

    def read(self, reader: Callable[[PySpace, builtins.int], T]) -> T:
        """What a reader of the interpreter's objects makes of it. Raises GdbextError, also for a missing value."""
        if not self.address:
            raise self.fault or BadData(self.why)
        return reader(self.python, self.address)

    def read_or(self, reader: Callable[[PySpace, builtins.int], T], default: T) -> T:
        """The same, and the default if that cannot be read."""
        try:
            return self.read(reader)
        except GdbextError:
            return default

    def checked(self) -> PyRef:
        """Itself. Raises GdbextError where it is missing."""
        return self.read(PyRef)

    # --- what it is ------------------------------------------------------------------------------

    @property
    def type(self) -> builtins.str:
        """The name of its class (tp_name), "" where that cannot be read."""
        return self.read_or(type_name, "")

    @property
    def is_dict(self) -> bool:
        """It is a dict, or of a class that is derived from it."""
        return bool(self) and self.python.objects.has_flag(self.address, FLAG_DICT)

    @property
    def has_own_class(self) -> bool:
        """Its class is made at run time, by a program or a library: it is not built in."""
        return bool(self) and self.python.objects.has_flag(self.address, FLAG_HEAP_TYPE)

    @property
    def is_none(self) -> bool:
        return self.type == "NoneType"

    def str(self, limit: builtins.int = TEXT_LIMIT) -> builtins.str:
        """The first ``limit`` characters of a str; "" for anything else."""
        return self.read_or(lambda python, at: python.objects.text(at, limit), "")

    def int(self) -> builtins.int | None:
        """The value of an int or a bool; None for anything else."""
        return self.read_or(integer, None)

    def float(self) -> builtins.float | None:
        """The value of an int or a float; None for anything else."""
        return self.read_or(lambda python, at: python.objects.number(at), None)

    def bytes(self, limit: builtins.int) -> builtins.bytes | None:
        """A bytes object of at most ``limit`` bytes; None for anything else."""
        return self.read_or(lambda python, at: python.objects.bytes(at, limit), None)

    def plain(self, limit: builtins.int = TEXT_LIMIT) -> Plain:
        """The value of a bool, an int, a float or None, or the first ``limit`` characters of a str. Raises BadData for
        anything else, MemoryFault."""
        kind = self.read(type_name)
        if kind == "NoneType":
            return None
        if kind == "str":
            return self.read(lambda python, at: python.objects.text(at, limit))
        if kind in ("bool", "int", "float"):
            number = self.read(lambda python, at: python.objects.number(at))
            return bool(number) if kind == "bool" else number
        raise BadData(f"a {kind} is not shown")

    @property
    def code(self) -> Code | None:
        """A code object; None for anything else."""
        return self.read_or(lambda python, at: python.codes.get(at), None)

    @property
    def function(self) -> PythonFunction | None:
        """The function behind a callable; None where no object can be read."""
        return self.read_or(lambda python, at: python.functions.source(at), None)

    @property
    def c_function(self) -> builtins.int:
        """The address of the code of a built-in function; 0 for anything else."""
        return self.read_or(_c_function, 0)

    @property
    def body(self) -> builtins.int:
        """The address behind its head, where the structure of an extension begins; 0 for a missing one."""
        return self.read_or(lambda python, at: at + python.layout.size(py.PyObject), 0)

    @property
    def of_class(self) -> PyRef:
        """Its class."""
        return self.at(lambda python, at: python.objects.type_of(at).address)

    @property
    def bases(self) -> PyItems[tuple[builtins.str, PyRef]]:
        """A class and those that it derives from, by its method resolution order, with their names (tp_name)."""
        return PyItems(self, _bases)

    @property
    def closure(self) -> PyItems[PyRef]:
        """The values in a function's closure; none for what is no function."""
        return PyItems(self, _closure)

    def closure_variables(self) -> dict[builtins.str, PyRef]:
        """The variables in a function's closure by name; empty for what is no function."""
        values, code = self.closure, self["__code__"].code
        try:
            names = code.local_names() if values and code else []
        except GdbextError:
            return {}
        return dict(zip(names[-len(values) :], values))

    @property
    def referent(self) -> PyRef:
        """The object that a weak reference refers to: None once it is gone. Missing for any other object."""
        names = ("weakref", "weakref.ReferenceType", "ReferenceType")
        return self.at(
            lambda python, at: py.PyWeakReference(python.space, at).wr_object if type_name(python, at) in names else 0
        )

    # --- what it has -----------------------------------------------------------------------------

    def __getitem__(self, name: builtins.str) -> PyRef:
        """The value under a str key of a dict, the global of a module, or the own attribute of a class or instance,
        those in slots included. A function has ``__globals__``, a method ``__self__``, a staticmethod ``__func__``."""
        return self.at(lambda python, at: _member(python, at, name), name)

    def at(self, reader: Callable[[PySpace, builtins.int], builtins.int], name: builtins.str = "") -> PyRef:
        """The object at the address that a reader of the interpreter's structures gives, 0 for none."""
        if not self.address:
            return self
        try:
            return PyRef(self.python, self.read(reader), name=name)
        except GdbextError as error:
            return PyRef(self.python, 0, error)

    def member(self, name: builtins.str) -> PyRef:
        """The object that an instance of an extension class keeps in a member of that name (PyMemberDef)."""
        return self.at(lambda python, at: c_member(python.objects, python.dicts, at, name), name)

    def var(self, name: builtins.str) -> PyRef:
        """The attribute in the ``__dict__`` of an instance. ``[name]`` finds those in slots, too: of an instance that
        has none of the name, its classes are read for that."""
        return self.at(lambda python, at: python.dicts.attribute(at, name), name)

    def inherited(self, name: builtins.str) -> PyRef:
        """The attribute of its class, or of a base of that."""
        return self.at(
            lambda python, at: python.dicts.inherited_attribute(python.objects.type_of(at).address, name), name
        )

    def variables(self, limit: builtins.int = _VARIABLES) -> PyVariables:
        """The same as by ``[name]``, all at once: cheaper if several are needed. Names are cut after 512
        characters."""
        return self._by_name(_fields, limit)

    def vars(self, limit: builtins.int = _VARIABLES) -> PyVariables:
        """The ``__dict__`` of an instance by name: its own attributes without those in slots."""
        return self._by_name(lambda python, at: python.dicts.attributes(at), limit)

    def attributes(self, limit: builtins.int = _VARIABLES) -> PyVariables:
        """The own attributes of an instance by name, those in slots included, also where it is a dict; none of an
        instance of a built-in type."""
        return self._by_name(_attributes, limit)

    def _by_name(self, fields: Callable[[PySpace, builtins.int], Iterator[Item]], limit: builtins.int) -> PyVariables:
        variables = PyVariables(self.python)
        try:
            for key, value in self.read(lambda python, at: islice(fields(python, at), limit)):
                try:
                    variables[self.python.objects.name(key)] = PyRef(self.python, value)
                except BadData:  # a name that is no text
                    continue
        except GdbextError as error:
            variables.fault = error
        return variables

    def items(self, limit: builtins.int = ITEM_LIMIT) -> PyItems[tuple[PyRef, PyRef]]:
        """The keys of a dict with their values."""
        return PyItems(self, lambda python, at: _pairs(python, at, limit))

    def keys(self, limit: builtins.int = ITEM_LIMIT) -> PyItems[PyRef]:
        """The keys of a dict."""
        return PyItems(self, lambda python, at: (key for key, _ in _pairs(python, at, limit)))

    def elements(self, limit: builtins.int = ITEM_LIMIT) -> PyItems[PyRef]:
        """The first elements of a list, tuple, set, deque or SimpleQueue; of a set, some that were removed are among
        them."""
        return PyItems(self, lambda python, at: (PyRef(python, each) for each in _elements(python, at, limit)))

    def parts(self, limit: builtins.int = _PARTS) -> list[PyRef]:
        """The first values of a dict, else the first elements: without those of sets, which have removed ones."""
        if self.is_dict:
            return [value for _, value in self.items(limit)]
        return [] if self.type in ("set", "frozenset") else self.elements(limit)

    def __iter__(self) -> Iterator[PyRef]:
        return iter(self.elements())


class PyItems(list[T]):
    """The items of a container, up to the first one that cannot be read: its error is ``fault``."""

    def __init__(self, owner: PyRef, reader: Callable[[PySpace, int], Iterable[T]]) -> None:
        super().__init__()
        self.fault: GdbextError | None = None
        try:
            self.extend(owner.read(reader))
        except GdbextError as error:
            self.fault = error

    def checked(self) -> PyItems[T]:
        """Itself. Raises GdbextError where some could not be read."""
        if self.fault:
            raise self.fault
        return self


class PyVariables(dict[str, PyRef]):
    """Values by their names: those of a frame, of a module, of an instance, or of a dict. ``[name]`` is missing for a
    name that there is not."""

    def __init__(self, python: PySpace, fault: GdbextError | None = None) -> None:
        super().__init__()
        self.python = python
        self.fault = fault

    def __missing__(self, name: str) -> PyRef:
        return PyRef(self.python, 0, self.fault, name)

    def checked(self) -> PyVariables:
        """Itself. Raises GdbextError where some could not be read."""
        if self.fault:
            raise self.fault
        return self


def type_name(python: PySpace, address: int) -> str:
    """The name of an object's class, for ``PyRef.read``. Raises MemoryFault, BadData."""
    return python.objects.type_of(address).name


def text(python: PySpace, address: int) -> str:
    """A str, for ``PyRef.read``. Raises MemoryFault, BadData."""
    return python.objects.text(address)


def integer(python: PySpace, address: int) -> int:
    """An int, for ``PyRef.read``. Raises MemoryFault, BadData."""
    return python.objects.integer(address)


def size_of_deque(python: PySpace, address: int) -> int | None:
    """The number of items of a deque, for ``PyRef.read_or``. Raises MemoryFault, BadData."""
    return deque_items(python, address, 0)[0]


def _c_function(python: PySpace, address: int) -> int:
    if type_name(python, address) != _BUILTIN:
        return 0
    return python.memory.u64(py.PyCFunctionObject(python.space, address).m_ml + _METHOD)


_SPECIAL: Mapping[str, Mapping[str, Callable[[PySpace, int], int]]] = {
    "__globals__": {"function": lambda python, at: py.PyFunctionObject(python.space, at).func_globals},
    "__code__": {"function": lambda python, at: py.PyFunctionObject(python.space, at).func_code},
    "__self__": {
        "method": lambda python, at: py.PyMethodObject(python.space, at).im_self,
        _BUILTIN: lambda python, at: py.PyCFunctionObject(python.space, at).m_self,
    },
    "__func__": {"staticmethod": lambda python, at: python.memory.u64(at + python.layout.size(py.PyObject))},
}
"""Attributes that built-in types have in their structures: name → type → reader."""


def _bases(python: PySpace, address: int) -> Iterator[tuple[str, PyRef]]:
    order = py.PyTypeObject(python.space, address).tp_mro
    classes = python.objects.tuple_items(order, _BASES) if order else ()
    return ((python.objects.type_info(each).name, PyRef(python, each)) for each in classes)


def _closure(python: PySpace, address: int) -> Iterator[PyRef]:
    is_one = python.objects.type_of(address).name == "function"
    closure = py.PyFunctionObject(python.space, address).func_closure if is_one else 0
    cells = python.objects.tuple_items(closure, _CELLS) if closure else ()
    return (PyRef(python, py.PyCellObject(python.space, cell).ob_ref) for cell in cells)


def _member(python: PySpace, address: int, name: str) -> int:
    if name in _SPECIAL:
        reader = _SPECIAL[name].get(type_name(python, address))
        return reader(python, address) if reader else 0
    is_called = python.dicts.is_called
    return next((value for key, value in _fields(python, address) if is_called(key, name)), 0)


def _fields(python: PySpace, address: int) -> Iterator[Item]:
    """Names and values of what is in a dict, a module, a class or an instance."""
    dicts, info = python.dicts, python.objects.type_of(address)
    if info.flags & FLAG_DICT:
        return dicts.items(address)
    if info.name == "module":
        namespace = py.PyModuleObject(python.space, address).md_dict
        return dicts.items(namespace) if namespace else iter(())
    if info.flags & FLAG_TYPE:
        return dicts.class_items(address)
    own = dicts.attributes(address)
    return chain(own, slot_attributes(python.objects, address)) if info.flags & FLAG_HEAP_TYPE else own


def _attributes(python: PySpace, address: int) -> Iterator[Item]:
    if not python.objects.type_of(address).flags & FLAG_HEAP_TYPE:
        return iter(())
    return chain(python.dicts.attributes(address), slot_attributes(python.objects, address))


def _pairs(python: PySpace, address: int, limit: int) -> Iterator[tuple[PyRef, PyRef]]:
    return ((PyRef(python, key), PyRef(python, value)) for key, value in python.dicts.items(address, limit))


def _elements(python: PySpace, address: int, limit: int) -> Sequence[int]:
    objects, info = python.objects, python.objects.type_of(address)
    if info.flags & FLAG_LIST:
        return objects.list_items(address, most=limit)
    if info.flags & FLAG_TUPLE:
        return objects.tuple_items(address, most=limit)
    if info.name == "collections.deque":
        return deque_items(python, address, limit)[1]
    return (queued if info.name == QUEUE_TYPE else set_items)(python, address)[:limit]
