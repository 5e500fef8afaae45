"""Structures of the target, declared once as classes and read by attribute; a misspelled member is an error of mypy.

    class StorageImpl(Struct, of="c10::StorageImpl"):
        size_bytes_ = I64()

    class TensorImpl(Struct, of="c10::TensorImpl"):
        numel_ = I64()
        storage_ = Link(lambda: StorageImpl)

    tensor = TensorImpl(Space(memory, layout), address)
    tensor.numel_, tensor.storage_.size_bytes_

A declaration gives the name of a structure in the layout documents and its members; the layout has their offsets. Each
access reads one member, so that a fault costs that member only. On the class, an attribute gives the member itself:
``TensorImpl.numel_.offset(space)``, for code that reads many objects at once.

Reading a member raises LayoutError if the layout lacks it or has it smaller than declared, and MemoryFault.
"""

from __future__ import annotations

import struct
from functools import partial
from typing import TYPE_CHECKING, Generic, TypeVar

from gdbext.engine.process.memory import FieldLayout, StructLayout
from gdbext.errors import LayoutError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import ModuleType
    from typing import Any, ClassVar, Protocol, overload

    from gdbext.engine.process.memory import Memory

    class Shapes(Protocol):
        """The part of a layout that structures use."""

        def struct(self, name: str) -> StructLayout:
            """The structure ``name``. Raises LayoutError."""


Value = TypeVar("Value")
SomeStruct = TypeVar("SomeStruct", bound="Struct")
SomeMember = TypeVar("SomeMember", bound="Member[Any]")


class Space:
    """Memory, and the layout of the structures in it."""

    __slots__ = ("_offsets", "layout", "memory")

    def __init__(self, memory: Memory, layout: Shapes) -> None:
        self.memory = memory
        self.layout = layout
        self._offsets: dict[Member[Any], int] = {}

    def offset(self, member: Member[Any]) -> int:
        """The offset of a member in its structure, in bytes. Raises LayoutError."""
        try:
            return self._offsets[member]
        except KeyError:
            offset = self._offsets[member] = member.checked(self.layout).offset
            return offset


class OffsetShapes:
    """Structures with known offsets, but unknown sizes and types."""

    def __init__(self, members: Mapping[str, Mapping[str, int]]) -> None:
        """``members``: name of the structure → member → offset in bytes."""
        self._members = members

    def struct(self, name: str) -> StructLayout:
        """The structure ``name``. Raises LayoutError."""
        if name not in self._members:
            raise LayoutError(f"no offsets of {name} are known")
        return StructLayout(name, 0, {key: FieldLayout(key, at, 0, "") for key, at in self._members[name].items()})


class Member(Generic[Value]):
    """A member of a declared structure."""

    width = 0  # bytes that are read; a member of the layout must have at least as many. 0: the layout's size.

    def __init__(self, path: str = "", *, required: bool = False, at: int | None = None) -> None:
        """``path`` is its name in the layout (default: the attribute's); ``required``: a layout without it cannot be
        used; ``at``: its offset in bytes, if no header and so no layout document has the structure."""
        self.path = path
        self.required = required
        self.at = at
        self.owner = ""  # the structure's name in the layout

    def __set_name__(self, owner: type[Struct], name: str) -> None:
        self.path = self.path or name

    def __repr__(self) -> str:
        return f"{self.owner}::{self.path}"

    if TYPE_CHECKING:

        @overload
        def __get__(self: SomeMember, instance: None, owner: type[Struct]) -> SomeMember: ...

        @overload
        def __get__(self, instance: Struct, owner: type[Struct]) -> Value: ...

        @overload
        def __get__(self: SomeMember, instance: object, owner: type) -> SomeMember: ...  # a record has chosen it

    def __get__(self: SomeMember, instance: object, owner: type) -> SomeMember | Value:
        """The member's value in a structure; on a class, the member itself."""
        if not isinstance(instance, Struct):
            return self
        value: Value = instance.value(self)
        return value

    def read(self, space: Space, address: int) -> Value:
        """The value of a member that is at ``address``. Raises MemoryFault."""
        raise NotImplementedError

    def field(self, layout: Shapes) -> FieldLayout:
        """The member as the layout has it. Raises LayoutError."""
        return layout.struct(self.owner).field(self.path)

    def checked(self, layout: Shapes) -> FieldLayout:
        """``field``, if it has at least ``width`` bytes. Raises LayoutError."""
        field = self.field(layout)
        if 0 < field.size < self.width:
            raise LayoutError(f"{self!r} has {field.size} bytes, {self.width} were asked for")
        return field

    def offset(self, space: Space) -> int:
        """The offset in its structure, in bytes. Raises LayoutError."""
        return space.offset(self)

    def find(self, layout: Shapes) -> int | None:
        """The offset in its structure, in bytes; None if the layout does not have the member."""
        return self.field(layout).offset if self.is_in(layout) else None

    def is_in(self, layout: Shapes) -> bool:
        """True if the layout has the member."""
        try:
            return self.path in layout.struct(self.owner).fields
        except LayoutError:
            return False


class Struct:
    """A structure of the target at an address. A derived class declares one; its argument ``of`` is the name."""

    __slots__ = ("address", "space")
    OF: ClassVar[str] = ""  # the structure's name in the layout documents
    SIZE: ClassVar[int] = 0  # ``sizeof``, in bytes, if no layout document has it
    CPP: ClassVar[str] = ""
    """The C++ (or C) type to be measured (default: OF); "" for a part of another structure, or if no header has it."""

    def __init_subclass__(cls, of: str = "", size: int = 0, cpp: str | None = None) -> None:
        """Store what a declaration says (``of``: name in the layouts, ``size``: sizeof, ``cpp``: the C++ type to
        measure, default ``of``; "": none), and tell its members their structure."""
        if of:
            cls.OF, cls.SIZE, cls.CPP = of, size, of if cpp is None else cpp
        for member in vars(cls).values():
            if isinstance(member, Member):
                member.owner = cls.OF

    def __init__(self, space: Space, address: int) -> None:
        self.space = space
        self.address = address

    def __repr__(self) -> str:
        return f"{self.OF} at {self.address:#x}"

    def place(self, member: Member[Any]) -> int:
        """The address of a member. Raises LayoutError."""
        return self.address + self.space.offset(member)

    def value(self, member: Member[Value]) -> Value:
        """The value of a member. Raises LayoutError, MemoryFault."""
        return member.read(self.space, self.place(member))

    def has(self, member: Member[Any]) -> bool:
        """True if the layout has that member."""
        return member.is_in(self.space.layout)

    def bytes_of(self, member: Member[Any]) -> bytes:
        """The bytes of the whole member. Raises LayoutError, also if the layout does not have its size."""
        field = member.field(self.space.layout)
        if field.size <= 0:
            raise LayoutError(f"the layout of {self.OF} does not say how large {field.name} is")
        return self.space.memory.read(self.address + field.offset, field.size)

    @classmethod
    def shape(cls, layout: Shapes) -> StructLayout:
        """The structure as the layout has it. Raises LayoutError."""
        return layout.struct(cls.OF)

    @classmethod
    def size(cls, space: Space) -> int:
        """``sizeof``, in bytes. Raises LayoutError."""
        return space.layout.struct(cls.OF).size

    @classmethod
    def array(cls: type[SomeStruct], space: Space, address: int, count: int) -> Iterator[SomeStruct]:
        """The ``count`` structures of an array at ``address``. Raises LayoutError."""
        size = cls.size(space)
        return (cls(space, address + index * size) for index in range(count))

    @classmethod
    def members(cls) -> Iterator[Member[Any]]:
        """The declared members, including those of its bases."""
        for base in cls.__mro__:
            yield from (member for member in vars(base).values() if isinstance(member, Member))


def declared_in(*modules: ModuleType) -> Iterator[type[Struct]]:
    """The structures that these modules declare themselves."""
    for module in modules:
        for value in vars(module).values():
            is_struct = isinstance(value, type) and issubclass(value, Struct) and bool(value.OF)
            if is_struct and value.__module__ == module.__name__:
                yield value


def wanted(*modules: ModuleType) -> dict[str, str]:
    """Name → C++ (or C) type of the structures that modules declare and headers have, for a measurement."""
    return {structure.OF: structure.CPP for structure in declared_in(*modules) if structure.CPP}


def required_in(*modules: ModuleType) -> Iterator[Member[Any]]:
    """The required members of the structures that modules declare."""
    return (member for structure in declared_in(*modules) for member in structure.members() if member.required)


class Number(Member[int]):
    """A whole number; the first bytes of a larger member (a smart pointer). By default it is an unsigned number of 64
    bits, or an address."""

    def __init__(self, path: str = "", *, required: bool = False, at: int | None = None, kind: str = "u64") -> None:
        """``kind``: "u" or "i" (signed) with the number of bits, as the method of Memory that reads it."""
        super().__init__(path, required=required, at=at)
        self.kind = kind
        self.width = int(kind[1:]) // 8

    def read(self, space: Space, address: int) -> int:
        value: int = getattr(space.memory, self.kind)(address)
        return value


U64 = Number
U8, U16, U32, I32, I64 = (partial(Number, kind=kind) for kind in ("u8", "u16", "u32", "i32", "i64"))


class Flag(Member[bool]):
    """A ``bool``: any other byte than 0 is true."""

    width = 1

    def read(self, space: Space, address: int) -> bool:
        return space.memory.u8(address) != 0


class F64(Member[float]):
    """A ``double``."""

    width, form = 8, "<d"

    def read(self, space: Space, address: int) -> float:
        value: float = struct.unpack(self.form, space.memory.read(address, self.width))[0]
        return value


class F32(F64):
    """A ``float``."""

    width, form = 4, "<f"


class Place(Member[int]):
    """Any member that has a reader elsewhere (a string, a container): the value is its address."""

    def read(self, space: Space, address: int) -> int:  # noqa: ARG002 - as its base class has it
        return address


class BitField(Member[int]):
    """An unsigned bit-field, by the layout's bits; or an ordinary member of at most eight bytes."""

    def read(self, space: Space, address: int) -> int:
        field = self.field(space.layout)
        return _bits(field, space.memory.read(address, field.size))

    def of(self, layout: Shapes, raw: bytes) -> int:
        """The number in ``raw``, the bytes of a whole object; 0 if the layout does not have the member."""
        if not self.is_in(layout):
            return 0
        field = self.field(layout)
        return _bits(field, raw[field.offset : field.offset + field.size])


def _bits(field: FieldLayout, data: bytes) -> int:
    """The value of the bit-field ``field``, whose bytes are ``data``; their number if it is an ordinary member."""
    value = int.from_bytes(data, "little")
    if not field.bit_size:
        return value
    return value >> (field.bit_offset - 8 * field.offset) & (1 << field.bit_size) - 1


class Inner(Member[SomeStruct]):
    """A structure inside another one."""

    def __init__(
        self, what: Callable[[], type[SomeStruct]], path: str = "", *, required: bool = False, at: int | None = None
    ) -> None:
        """``what`` returns the structure's class, which may be declared later in the file."""
        super().__init__(path, required=required, at=at)
        self.what = what

    def read(self, space: Space, address: int) -> SomeStruct:
        return self.what()(space, address)


class Link(Inner[SomeStruct]):
    """A pointer to a structure, or a smart pointer whose first word is one."""

    width = 8

    def read(self, space: Space, address: int) -> SomeStruct:
        """The structure that it points to, at address 0 for a null pointer. Raises MemoryFault."""
        return self.what()(space, space.memory.u64(address))
