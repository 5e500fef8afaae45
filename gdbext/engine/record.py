"""Definitions that cost little at import: Record is typing.NamedTuple, Enum enum.Enum, late_pattern re.compile.

typing.NamedTuple compiles a constructor for each class when the class is defined, 0.1 ms each. A short look imports 180
such classes and makes a few instances of most; this was a twelfth of its time. All constructors of Records with as many
fields have the same code, but for the names of the parameters. Compiling a pattern takes 0.1 to 2 ms, and a short look
uses few of those that the modules on its way define: another twelfth. A late_pattern compiles when it is first used. A
member of an enum.Enum costs 15 µs, and a short look makes 300. Generic, Protocol, TypeVar and cast are those of typing,
which takes 2.3 ms to import: nothing else on that way does. To type checkers all are what they stand for, and they have
what is used of that.
"""

from __future__ import annotations

__all__ = ["Enum", "Generic", "Protocol", "Record", "RecordFamily", "TypeVar", "cast", "late_pattern"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from enum import Enum
    from re import compile as late_pattern
    from typing import Any, Generic, Protocol, TypeVar, cast
    from typing import NamedTuple as Record

    from typing_extensions import Self, dataclass_transform

    @dataclass_transform(frozen_default=True)
    class RecordFamily:
        """A base, without fields, of records that answer the same questions: typing has no such NamedTuple."""

        def __init__(self, *fields: Any) -> None: ...

        def _replace(self, **values: Any) -> Self: ...
else:
    import re
    from collections import _tuplegetter
    from functools import cached_property
    from types import FunctionType

    class _RecordType(type):
        """Makes the annotations of a class its fields; a class that derives from one with fields adds none."""

        def __new__(cls, name, bases, namespace):
            if "_fields" not in namespace and not any(getattr(base, "_fields", ()) for base in bases):
                namespace.setdefault("__slots__", ())
                namespace.setdefault("__new__", _new_record)  # not that of a family, which has no fields
                fields = tuple(namespace.get("__annotations__", ()))
                defaults = {field: namespace[field] for field in fields if field in namespace}
                namespace.update({field: _tuplegetter(index, None) for index, field in enumerate(fields)})
                namespace.update(_fields=fields, _field_defaults=defaults, __match_args__=fields)
            return super().__new__(cls, name, bases, namespace)

    _new = tuple.__new__
    _CODES = {
        len(made.__code__.co_varnames) - 1: made.__code__
        for made in (
            lambda cls: _new(cls, ()),
            lambda cls, a: _new(cls, (a,)),
            lambda cls, a, b: _new(cls, (a, b)),
            lambda cls, a, b, c: _new(cls, (a, b, c)),
            lambda cls, a, b, c, d: _new(cls, (a, b, c, d)),
            lambda cls, a, b, c, d, e: _new(cls, (a, b, c, d, e)),
            lambda cls, a, b, c, d, e, f: _new(cls, (a, b, c, d, e, f)),
            lambda cls, a, b, c, d, e, f, g: _new(cls, (a, b, c, d, e, f, g)),
            lambda cls, a, b, c, d, e, f, g, h: _new(cls, (a, b, c, d, e, f, g, h)),
        )
    }
    """The number of fields → the code of a constructor. To compile one takes 100 µs, to name its parameters anew 3."""

    def _constructor(record):
        """The function ``__new__(cls, field, with_default=…)`` of a class."""
        count = len(record._fields)
        if count not in _CODES:
            names = ", ".join(f"_{number}" for number in range(count))
            _CODES[count] = eval(f"lambda cls, {names}: _new(cls, ({names}))").__code__
        code = _CODES[count].replace(co_varnames=("cls", *record._fields), co_name="__new__")
        made = FunctionType(code, globals(), "__new__", tuple(record._field_defaults.values()))
        made.__qualname__ = f"{record.__qualname__}.__new__"
        return made

    def _new_record(cls, *given, **named):
        new = _constructor(cls)
        cls.__new__ = staticmethod(new)
        return new(cls, *given, **named)

    class Record(tuple, metaclass=_RecordType):
        """A tuple with named fields: the annotations of the class, with their defaults."""

        __new__ = _new_record

        def __repr__(self):
            fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self))
            return f"{type(self).__name__}({fields})"

        def __getnewargs__(self):
            return tuple(self)

        def _asdict(self):
            """The fields as a dictionary: field → value."""
            return dict(zip(self._fields, self))

        def _replace(self, **values):
            """The same with other values. Raises TypeError for a field that there is not."""
            changed = tuple.__new__(type(self), map(values.pop, self._fields, self))
            if values:
                raise TypeError(f"{type(self).__name__} has no field {', '.join(values)}")
            return changed

    RecordFamily = Record

    class _EnumType(type):
        """Makes the values of a class its members, each once: another name for the same value is the same member."""

        def __new__(cls, name, bases, namespace):
            values = {key: value for key, value in namespace.items() if _is_member(key, value)} if bases else {}
            make = namespace.pop("__new__", None)
            made = super().__new__(cls, name, bases, {key: namespace[key] for key in namespace if key not in values})
            made._by_value, made._by_name = {}, {}
            for key, value in values.items():
                made._add(key, value, make)
            return made

        def _add(cls, name, value, make):
            if make is None:
                member = object.__new__(cls)
                member._value_ = value
            else:
                member = make(cls, *value) if isinstance(value, tuple) else make(cls, value)
            member.name, member.value = name, member._value_
            member = cls._by_value.setdefault(member.value, member)
            cls._by_name[name] = member
            setattr(cls, name, member)

        def __call__(cls, value):
            try:
                return cls._by_value[value]
            except (KeyError, TypeError):
                raise ValueError(f"{value!r} is not a valid {cls.__qualname__}") from None

        __members__ = property(lambda cls: dict(cls._by_name))
        __iter__ = lambda cls: iter(cls._by_value.values())  # noqa: E731
        __reversed__ = lambda cls: reversed(cls._by_value.values())  # noqa: E731
        __len__ = lambda cls: len(cls._by_value)  # noqa: E731
        __bool__ = lambda _: True  # noqa: E731
        __getitem__ = lambda cls, name: cls._by_name[name]  # noqa: E731
        __contains__ = lambda cls, value: isinstance(value, cls)  # noqa: E731

    def _is_member(name, value):
        return not (name[:1] == name[-1:] == "_" or hasattr(type(value), "__get__"))

    class Enum(metaclass=_EnumType):
        """A class of named values: ``name`` and ``value`` of each member."""

        def __repr__(self):
            return f"<{type(self).__name__}.{self.name}: {self.value!r}>"

        def __str__(self):
            return f"{type(self).__name__}.{self.name}"

        def __format__(self, spec):
            return format(str(self), spec)

        def __reduce_ex__(self, protocol):
            return type(self), (self.value,)

        def __copy__(self):
            return self

        def __deepcopy__(self, memo):
            return self

    class late_pattern:
        """A compiled pattern to be."""

        def __init__(self, pattern, flags=0):
            self._source = pattern, flags

        @cached_property
        def _compiled(self):
            return re.compile(*self._source)

        match = property(lambda self: self._compiled.match)
        fullmatch = property(lambda self: self._compiled.fullmatch)
        search = property(lambda self: self._compiled.search)
        findall = property(lambda self: self._compiled.findall)
        finditer = property(lambda self: self._compiled.finditer)
        split = property(lambda self: self._compiled.split)
        sub = property(lambda self: self._compiled.sub)
        subn = property(lambda self: self._compiled.subn)
        pattern = property(lambda self: self._compiled.pattern)

    class Generic:
        """A base of classes with parameters, which are for type checkers alone."""

        __slots__ = ()
        __class_getitem__ = classmethod(lambda cls, _: cls)

    class Protocol(Generic):
        """A base of what is described by its members."""

        __slots__ = ()

    class TypeVar:
        """The name of a type that a generic class leaves open."""

        __slots__ = ()

        def __init__(self, *_, **__):
            pass

    def cast(_, value):
        """The value itself: what it is, type checkers are told."""
        return value
