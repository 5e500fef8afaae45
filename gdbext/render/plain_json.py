"""Records as JSON: the names of their fields are the members of objects, for sections of reports and the values in
them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite

from gdbext.engine.record import Enum
from gdbext.engine.vocabulary import Hexadecimal, Section
from gdbext.torch.stack import DispatchKeySet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def plain(value: Any) -> Any:
    """A value of the model as JSON: named tuples and dataclasses become objects, enumerations their values, other
    tuples arrays.

    An integer is a number, a Hexadecimal the text that reports have for addresses and bits.
    """
    if isinstance(value, DispatchKeySet):
        return keyset(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Hexadecimal):
        return f"{value:#x}"
    names = field_names(value)
    if names:
        return {name: plain(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(each) for each in value]
    return value


def field_names(value: object) -> tuple[str, ...]:
    """The names of a record's fields; none for anything else.

    A dataclass is asked itself (as dataclasses.fields does): the module takes a tenth of a look to import.
    """
    if isinstance(value, Section):
        return tuple(vars(value))
    return tuple(getattr(value, "__dataclass_fields__", ())) or getattr(value, "_fields", ())


def keyset(value: DispatchKeySet) -> dict[str, Any]:
    """A KEYSET of the contract: its bits and its keys as PyTorch prints them."""
    return {"bits": f"{value.bits:#x}", "keys": list(value.keys)}


def optional_keyset(value: DispatchKeySet | None) -> dict[str, Any] | None:
    """A KEYSET of the contract, or null."""
    return None if value is None else keyset(value)


def members(sections: tuple[Section, ...], why: bool) -> dict[str, Any]:
    """Each section under its name. ``why``: with the evidence."""
    return {section.name: _value(section, why) for section in sections}


def _value(section: Section, why: bool) -> Any:
    document = section.document(why)
    return plain(section) if document is None else document


def number(value: Any) -> Any:
    """A number, or nested lists of them; [real, imaginary] for a complex one."""
    if isinstance(value, list):
        return [number(each) for each in value]
    if isinstance(value, complex):
        return [number(value.real), number(value.imag)]
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value
