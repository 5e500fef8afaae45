"""A Python object of the target as a value, as ``Struct`` is one for C++. Reading it never raises.

    own = stack.locals_of("_all_gather", RPC_FILE)
    own["leader_name"].str(), [worker.str() for worker in own["states"]["gathered_objects"].keys()]

A value that does not exist or cannot be read is missing: it is falsy, everything read from it is missing or empty, and
``why`` is the reason. ``fault`` is the error that prevented reading, None for a value that does not exist. Containers
have a fault, too. ``checked()`` and ``read()`` raise the fault, for answers that must be complete.
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

_VARIABLES = 10_000  # most variables that are read at once, if no limit is given
_BUILTIN = "builtin_function_or_method"


class PyRef:
    """The object at an address, which is 0 for a missing one. References to the same object are equal."""

    __slots__ = ("address", "fault", "name", "python")

    def __init__(
        self, python: PySpace, address: builtins.int, fault: GdbextError | None = None, name: builtins.str = ""
    ) -> None:
        self.python = python
        self.address = address
        self.fault = fault
        self.name = name  # the name under which a missing value was expected

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
        """The reason why it is missing; "" for a value that exists."""
        if self.address:
            return ""
        if self.fault:
            return self.fault.what
        return f"it has no {self.name}" if self.name else "it is not there"

    @property
    def is_absent(self) -> bool:
        """True if it does not exist; False if it exists or could not be read."""
        return not self.address and not self.fault

    def read(self, reader: Callable[[PySpace, builtins.int], T]) -> T:
        """The result of ``reader(python, address)``. Raises GdbextError, also for a missing value."""
        if not self.address:
            raise self.fault or BadData(self.why)
        return reader(self.python, self.address)

    def read_or(self, reader: Callable[[PySpace, builtins.int], T], default: T) -> T:
        """The result of ``reader(python, address)``; the default if that cannot be read."""
        try:
            return self.read(reader)
        except GdbextError:
            return default

    def checked(self) -> PyRef:
        """Itself. Raises GdbextError if it is missing."""
        return self.read(PyRef)

    @property
    def type(self) -> builtins.str:
        """The name of its class (tp_name), "" if that cannot be read."""
        return self.read_or(type_name, "")

    @property
    def is_dict(self) -> bool:
        """True for a dict, and for an instance of a class that derives from it."""
        return bool(self) and self.python.objects.has_flag(self.address, FLAG_DICT)

    @property
    def has_own_class(self) -> bool:
        """True if its class was defined in Python, by a program or a library: it is not built in."""
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
        """A bool, int, float, None, or a str cut after ``limit``. Raises BadData for other types, MemoryFault."""
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
        """The function behind a callable; None if no object can be read."""
        return self.read_or(lambda python, at: python.functions.source(at), None)

    @property
    def c_function(self) -> builtins.int:
        """The address of the code of a built-in function (ml_meth, Include/methodobject.h); 0 for anything else."""
        if self.type != _BUILTIN:
            return 0
        return self.read_or(lambda python, at: python.memory.u64(py.PyCFunctionObject(python.space, at).m_ml + 8), 0)

    @property
    def body(self) -> builtins.int:
        """The address after its PyObject head, where an extension's own members begin; 0 for a missing object."""
        return self.read_or(lambda python, at: at + python.layout.size(py.PyObject), 0)

    @property
    def of_class(self) -> PyRef:
        return self.at(lambda python, at: python.objects.type_of(at).address)

    @property
    def bases(self) -> PyItems[tuple[builtins.str, PyRef]]:
        """(tp_name, class) of a class and its bases, by its method resolution order."""

        def read_classes(python: PySpace, address: builtins.int) -> Iterator[tuple[builtins.str, PyRef]]:
            """The classes of the MRO of the class at ``address``."""
            order = py.PyTypeObject(python.space, address).tp_mro
            kinds = python.objects.tuple_items(order, 64) if order else ()
            return ((python.objects.type_info(kind).name, PyRef(python, kind)) for kind in kinds)

        return PyItems(self, read_classes)

    @property
    def closure(self) -> PyItems[PyRef]:
        """The values in a function's closure; none for any other object."""

        def read_cells(python: PySpace, address: builtins.int) -> Iterator[PyRef]:
            """The contents of the cells of the function at ``address``."""
            is_function = type_name(python, address) == "function"
            closure = py.PyFunctionObject(python.space, address).func_closure if is_function else 0
            cells = python.objects.tuple_items(closure, 16) if closure else ()
            return (PyRef(python, py.PyCellObject(python.space, cell).ob_ref) for cell in cells)

        return PyItems(self, read_cells)

    def closure_variables(self) -> dict[builtins.str, PyRef]:
        """Name → value of the variables in a function's closure; empty for any other object."""
        values, code = self.closure, self["__code__"].code
        try:
            names = code.local_names() if values and code else []
        except GdbextError:
            return {}
        return dict(zip(names[-len(values) :], values))

    @property
    def referent(self) -> PyRef:
        """The object that a weak reference refers to: Python's None once it is gone. Missing for any other object."""
        names = ("weakref", "weakref.ReferenceType", "ReferenceType")
        return self.at(
            lambda python, at: py.PyWeakReference(python.space, at).wr_object if type_name(python, at) in names else 0
        )

    def __getitem__(self, name: builtins.str) -> PyRef:
        """The value under a str key of a dict, the global of a module, or the own attribute of a class or instance,
        those in slots included. A function has ``__globals__``, a method ``__self__``, a staticmethod ``__func__``."""

        def find_value(python: PySpace, address: builtins.int) -> builtins.int:
            """Address of the value under ``name``, 0 for none."""
            if name in _SPECIAL:
                reader = _SPECIAL[name].get(type_name(python, address))
                return reader(python, address) if reader else 0
            is_called = python.dicts.is_called
            return next((value for key, value in _fields(python, address) if is_called(key, name)), 0)

        return self.at(find_value, name)

    def at(self, reader: Callable[[PySpace, builtins.int], builtins.int], name: builtins.str = "") -> PyRef:
        """The object at the address that ``reader(python, address)`` returns, 0 for none."""
        if not self.address:
            return self
        try:
            return PyRef(self.python, self.read(reader), name=name)
        except GdbextError as error:
            return PyRef(self.python, 0, error)

    def member(self, name: builtins.str) -> PyRef:
        """The object in that member (PyMemberDef) of an instance of an extension class."""
        return self.at(lambda python, at: c_member(python.objects, python.dicts, at, name), name)

    def var(self, name: builtins.str) -> PyRef:
        """The attribute in the ``__dict__`` of an instance; cheaper than ``[name]``, which reads slots, too."""
        return self.at(lambda python, at: python.dicts.attribute(at, name), name)

    def inherited(self, name: builtins.str) -> PyRef:
        """The attribute of its class, or of a base class."""
        return self.of_class.at(lambda python, at: python.dicts.inherited_attribute(at, name), name)

    def variables(self, limit: builtins.int = _VARIABLES) -> PyVariables:
        """All values that ``[name]`` can return, by name: cheaper if several are needed. Names are cut after 512
        characters."""
        return self._variables_of(_fields, limit)

    def vars(self, limit: builtins.int = _VARIABLES) -> PyVariables:
        """The ``__dict__`` of an instance by name: its own attributes without those in slots."""
        return self._variables_of(lambda python, at: python.dicts.attributes(at), limit)

    def attributes(self, limit: builtins.int = 64) -> PyVariables:
        """The own attributes of an instance, those in slots included; none of an instance of a built-in type."""

        def own_attributes(python: PySpace, address: builtins.int) -> Iterator[Item]:
            """(name, value) addresses; none if the class is built in."""
            if not python.objects.type_of(address).flags & FLAG_HEAP_TYPE:
                return iter(())
            return chain(python.dicts.attributes(address), slot_attributes(python.objects, address))

        return self._variables_of(own_attributes, limit)

    def _variables_of(
        self, fields: Callable[[PySpace, builtins.int], Iterator[Item]], limit: builtins.int
    ) -> PyVariables:
        """Name → value of the first ``limit`` (name, value) pairs of addresses that ``fields(python, address)`` has."""
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

        def pairs(python: PySpace, address: builtins.int) -> Iterator[tuple[PyRef, PyRef]]:
            return ((PyRef(python, key), PyRef(python, value)) for key, value in python.dicts.items(address, limit))

        return PyItems(self, pairs)

    def keys(self, limit: builtins.int = ITEM_LIMIT) -> PyItems[PyRef]:
        """The keys of a dict."""
        return PyItems(self, lambda python, at: (PyRef(python, key) for key, _ in python.dicts.items(at, limit)))

    def elements(self, limit: builtins.int = ITEM_LIMIT) -> PyItems[PyRef]:
        """The first elements of a list, tuple, set (also some that were removed), deque or SimpleQueue."""
        return PyItems(self, lambda python, at: (PyRef(python, item) for item in _elements(python, at, limit)))

    def parts(self, limit: builtins.int = 32) -> list[PyRef]:
        """The first values of a dict, or elements of another container; none of a set, whose table has removed ones."""
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
        """Itself. Raises ``fault`` if items could not be read."""
        if self.fault:
            raise self.fault
        return self


class PyVariables(dict[str, PyRef]):
    """Name → value of a frame, a module, an instance or a dict; ``[name]`` is a missing value for any other name."""

    def __init__(self, python: PySpace, fault: GdbextError | None = None) -> None:
        super().__init__()
        self.python = python
        self.fault = fault

    def __missing__(self, name: str) -> PyRef:
        return PyRef(self.python, 0, self.fault, name)

    def checked(self) -> PyVariables:
        """Itself. Raises ``fault`` if variables could not be read."""
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


def _fields(python: PySpace, address: int) -> Iterator[Item]:
    """(name, value), two addresses, of the entries of a dict or the own attributes of a module, class or instance."""
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


def _elements(python: PySpace, address: int, limit: int) -> Sequence[int]:
    """Addresses of the first elements of a container that is no dict. Raises MemoryFault, BadData."""
    objects, info = python.objects, python.objects.type_of(address)
    if info.flags & FLAG_LIST:
        return objects.list_items(address, most=limit)
    if info.flags & FLAG_TUPLE:
        return objects.tuple_items(address, most=limit)
    if info.name == "collections.deque":
        return deque_items(python, address, limit)[1]
    return (queued if info.name == QUEUE_TYPE else set_items)(python, address)[:limit]
