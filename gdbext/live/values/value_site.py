"""Where an operator's function has its arguments and its result at the instruction that looks the keyset up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gdbext.arch.argument_holders import Holder, holders
from gdbext.arch.argument_passing import Passing, Slot
from gdbext.errors import BadData, GdbextError, MemoryFault
from gdbext.formats.symbols.demangle import demangle
from gdbext.model.record import Record
from gdbext.torch.registry.schema_types import hidden_result, schema_types
from gdbext.torch.stack.cpp_signature import parameters
from gdbext.torch.stack.roles import operator_method
from gdbext.torch.values.cpp_values import CppValues, Value, passing_of, used_bytes
from gdbext.torch.values.optional import has_own_optional

if TYPE_CHECKING:
    from gdbext.arch.base import Architecture
    from gdbext.inspection.session import Session
    from gdbext.live.run_control import RunControl
    from gdbext.process.symbols import Function
    from gdbext.torch.registry.operators import Operator

ReadWord = Callable[[int], "int | None"]


class Passed(Record):
    """Argument registers as a function was called with them; None for one that did not survive."""

    words: tuple[int | None, ...]
    floats: tuple[int | None, ...]
    """As many as the function takes."""


class ValueSite(Record):
    """What is known of a function at one of its instructions. ``hidden``: the result goes through a pointer."""

    names: tuple[str, ...]
    kinds: tuple[str, ...]
    slots: tuple[tuple[Slot, ...], ...]
    places: dict[str, Holder]
    hidden: bool
    start: int
    """Of the function."""
    lost: frozenset[str]
    """Argument registers of which the function keeps less than what was passed in them."""

    @property
    def floats(self) -> int:
        """How many arguments come in registers for floating-point numbers."""
        return sum(slot.float_register is not None for slots in self.slots for slot in slots)

    def values(
        self, values: CppValues, registers: Passed, cfa: int, word: ReadWord
    ) -> list[tuple[str, Value | None]]:
        """(name, value) of each argument; None where it is not known any more."""
        found: list[tuple[str, Value | None]] = []
        for number, name in enumerate(self.names):
            slots = self.slots[number] if number < len(self.slots) else ()
            words = [_word(slot, registers, cfa, word) for slot in slots]
            known = [each for each in words if each is not None]
            try:
                value = values.read(self.kinds[number], known) if known and len(known) == len(words) else None
            except (BadData, MemoryFault):
                value = None
            found.append((name, value))
        return found


def _word(slot: Slot, registers: Passed, cfa: int, word: ReadWord) -> int | None:
    if slot.register is not None:
        return registers.words[slot.register]
    if slot.float_register is not None:
        return registers.floats[slot.float_register]
    return None if slot.offset is None else word(cfa + slot.offset)


def value_site(session: Session, operator: Operator, function: Function, address: int) -> ValueSite | None:
    """That of ``at::_ops::NAME::call`` or ``redispatch`` at ``address``; None for any other function."""
    mangled = next((name for name in function.names if operator_method(name)[0] == operator.struct), None)
    schema = operator.schema
    hidden = hidden_result(schema.text) if schema is not None else None
    if mangled is None or schema is None or hidden is None:
        return None
    kinds = parameters(demangle(mangled))
    leading = int(hidden)
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
    code = list(session.memory.architecture.decode(raw, function.start))
    places = holders(session.memory.architecture, code, address)
    lost = frozenset(lost_registers(session.memory.architecture, kinds, slots, places, hidden))
    return ValueSite(tuple(names), tuple(kinds), slots, places, hidden, function.start, lost)


def lost_registers(
    architecture: Architecture,
    kinds: Sequence[str],
    slots: Sequence[Sequence[Slot]],
    places: Mapping[str, Holder],
    hidden: bool,
) -> Iterator[str]:
    """The argument registers of which the places keep less than arguments of those kinds take."""
    names, floats = architecture.argument_registers, architecture.float_argument_registers
    if hidden and names[0] not in places:
        yield names[0]
    for kind, passed in zip(kinds, slots):
        for slot in passed:
            if slot.register is not None:
                name = names[slot.register]
            elif slot.float_register is not None:
                name = floats[slot.float_register]
            else:
                continue
            if name not in places or places[name].size < used_bytes(kind):
                yield name


def _slots(session: Session, kinds: Sequence[str], leading: int) -> tuple[tuple[Slot, ...], ...]:
    """Of the arguments up to the first whose type is not known."""
    passings, own = [], has_own_optional(session.layout)
    for kind in kinds:
        passing = passing_of(kind, own)
        if passing is None:
            break
        passings.append(passing)
    slots = session.memory.architecture.place_arguments([Passing.WORD] * leading + passings)
    return tuple(slots[leading:])


def passed_at_entry(architecture: Architecture, site: ValueSite, control: RunControl) -> Passed:
    """What is in the registers at the function's first instruction."""
    floats = architecture.float_argument_registers[: site.floats]
    return Passed(
        tuple(control.register(name) for name in architecture.argument_registers),
        tuple(control.float_register(name) for name in floats),
    )


def passed_at(architecture: Architecture, site: ValueSite, control: RunControl, cfa: int, word: ReadWord) -> Passed:
    """The argument registers as the function was called, those that survived."""
    floats = architecture.float_argument_registers[: site.floats]

    def register(name: str) -> int:
        return control.float_register(name) if name in floats else control.register(name)

    names = (*architecture.argument_registers, *floats)
    kept = (None if name in site.lost else site.places.get(name) for name in names)
    values = tuple(place.word(register, word, cfa) if place is not None else None for place in kept)
    return Passed(values[: len(values) - len(floats)], values[len(values) - len(floats) :])
