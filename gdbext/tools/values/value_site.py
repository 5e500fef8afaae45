"""Finds an operator's arguments at a stop: in which registers and on which places of the stack they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch import Slot
from gdbext.engine.arch.argument_places import SavedArgument, saved_arguments
from gdbext.engine.formats.demangle import demangle
from gdbext.errors import BadData, GdbextError, MemoryFault
from gdbext.torch.registry.schema import hidden_result, schema_types
from gdbext.torch.stack.kernel_match import unboxed_entry_signature
from gdbext.torch.stack.roles import operator_method, parameters
from gdbext.torch.values.cpp_values import CppValues, Value, argument_slots, used_bytes

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.arch import Architecture
    from gdbext.engine.process.symbolizer import Function
    from gdbext.live.host import RunControl
    from gdbext.torch.registry import Operator

ReadWord = Callable[[int], "int | None"]


class ArgumentRegisters(NamedTuple):
    """Argument registers as a function was called with them; None for one that did not survive."""

    words: tuple[int | None, ...]
    floats: tuple[int | None, ...]
    """Number of floating-point registers, as many as the function takes."""


class ValueSite(NamedTuple):
    """The knowledge of a function at one of its instructions. ``uses_sret``: the caller passes a pointer to the
    result."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    slots: tuple[tuple[Slot, ...], ...]
    places: dict[str, SavedArgument]
    uses_sret: bool
    start: int
    """The start of the function."""
    lost: frozenset[str]
    """Argument registers of which the function keeps less than what was passed in them."""

    @property
    def floats(self) -> int:
        """Number of arguments that are passed in registers for floating-point numbers."""
        return sum(slot.float_register is not None for slots in self.slots for slot in slots)

    def values(
        self, values: CppValues, registers: ArgumentRegisters, cfa: int, word: ReadWord
    ) -> list[tuple[str, Value | None]]:
        """(name, value) of each argument; None where it is not known any more."""

        def read(slot: Slot) -> int | None:
            if slot.register is not None:
                return registers.words[slot.register]
            if slot.float_register is not None:
                return registers.floats[slot.float_register]
            return None if slot.offset is None else word(cfa + slot.offset)

        arguments: list[tuple[str, Value | None]] = []
        for number, name in enumerate(self.names):
            slots = self.slots[number] if number < len(self.slots) else ()
            words = [read(slot) for slot in slots]
            known = [each for each in words if each is not None]
            value = None
            with suppress(BadData, MemoryFault):
                value = values.read(self.kinds[number], known) if known and len(known) == len(words) else None
            arguments.append((name, value))
        return arguments


def value_site(session: Session, operator: Operator, function: Function, address: int) -> ValueSite | None:
    """The site of ``at::_ops::NAME::call`` or ``redispatch`` at ``address``; None for any other function."""
    mangled = next((name for name in function.names if operator_method(name)[0] == operator.struct), None)
    schema = operator.schema
    uses_sret = hidden_result(schema.text) if schema else None
    if not mangled or not schema or uses_sret is None:
        return None
    kinds = parameters(demangle(mangled))
    architecture = session.memory.architecture
    leading = architecture.leading_arguments(uses_sret)
    if operator_method(mangled)[1] == "redispatch":
        kinds, leading = kinds[1:], leading + 1
    names = [name for _, name in schema_types(schema.text)]
    if len(names) != len(kinds):
        return None
    slots = _slots(session, kinds, leading)
    try:
        raw = session.memory.read(function.start, function.size)
    except GdbextError:
        return None
    places = saved_arguments(architecture, list(architecture.decode(raw, function.start)), address)
    lost = frozenset(lost_registers(architecture, kinds, slots, places, uses_sret))
    return ValueSite(tuple(names), tuple(kinds), slots, places, uses_sret, function.start, lost)


def kernel_site(session: Session, operator: Operator, address: int) -> ValueSite | None:
    """The site of an unboxed kernel's first instruction: functor and keyset come before its arguments. None where
    neither the function's name nor the operator says which these are."""
    entries = (kernel for kernel in operator.table if address in (kernel.unboxed, kernel.sym_unboxed))
    kernel = next(entries, None)
    names = session.symbolizer.names_at(address)
    signature = unboxed_entry_signature(operator, kernel, address, names) if kernel else None
    schema = operator.schema
    arguments = [name for _, name in schema_types(schema.text)] if schema else []
    if not signature or len(arguments) != len(signature.parameters):
        return None
    architecture = session.memory.architecture
    leading = architecture.leading_arguments(signature.hidden) + 2  # functor and keyset (KernelFunction_impl.h)
    registers = (*architecture.argument_registers, *architecture.float_argument_registers)
    places = {name: SavedArgument(name) for name in registers}
    slots = _slots(session, signature.parameters, leading)
    return ValueSite(tuple(arguments), signature.parameters, slots, places, signature.hidden, address, frozenset())


def lost_registers(
    architecture: Architecture,
    kinds: Sequence[str],
    slots: Sequence[Sequence[Slot]],
    places: Mapping[str, SavedArgument],
    uses_sret: bool,
) -> Iterator[str]:
    """The argument registers of which the places keep less than arguments of those kinds take."""
    names, floats = architecture.argument_registers, architecture.float_argument_registers
    if uses_sret and architecture.result_pointer not in places:
        yield architecture.result_pointer
    for kind, passed in zip(kinds, slots):
        for number, slot in enumerate(passed):
            name = "" if slot.register is None else names[slot.register]
            if slot.float_register is not None:
                name = floats[slot.float_register]
            if name and (name not in places or places[name].size < used_bytes(kind, number)):
                yield name


def _slots(session: Session, kinds: Sequence[str], leading: int) -> tuple[tuple[Slot, ...], ...]:
    return tuple(argument_slots(session.memory.architecture, session.layout, kinds, leading)[leading:])


def result_pointer(architecture: Architecture, registers: ArgumentRegisters) -> int:
    """Address where the result is written; 0 where it is not known."""
    names = architecture.argument_registers
    known = architecture.result_pointer in names
    return (registers.words[names.index(architecture.result_pointer)] or 0) if known else 0


def registers_at_entry(architecture: Architecture, site: ValueSite, control: RunControl) -> ArgumentRegisters:
    """The registers at the function's first instruction."""
    floats = architecture.float_argument_registers[: site.floats]
    return ArgumentRegisters(
        tuple(control.register(name) for name in architecture.argument_registers),
        tuple(control.float_register(name) for name in floats),
    )


def registers_at(
    architecture: Architecture, site: ValueSite, control: RunControl, cfa: int, word: ReadWord
) -> ArgumentRegisters:
    """The argument registers as the function was called, those that survived."""
    floats = architecture.float_argument_registers[: site.floats]

    def register(name: str) -> int:
        return control.float_register(name) if name in floats else control.register(name)

    def value(name: str) -> int | None:
        place = None if name in site.lost else site.places.get(name)
        return place.word(register, word, cfa) if place else None

    return ArgumentRegisters(tuple(map(value, architecture.argument_registers)), tuple(map(value, floats)))
