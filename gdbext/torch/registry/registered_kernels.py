"""Finds the registered kernels that a piece of code belongs to: the reverse of all dispatch tables.

A library without symbols still has registered its kernels: each table entry holds the addresses of its functions. The
function that runs may be one of these, or what one of these jumps to in the end.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from functools import cached_property

from gdbext.engine.process.modules import Module
from gdbext.engine.record import Record
from gdbext.errors import GdbextError, MemoryFault
from gdbext.torch.registry.kernel import KernelFunction
from gdbext.torch.registry.operators import Dispatcher, Operator

_MOST_ENTRIES = 4096
"""Kernels of one library whose jumps are followed; a user's has tens, a stripped libtorch thousands."""

Jumps = Callable[[int, int], Iterable[int]]
"""(entry of a kernel, its functor) → where it jumps to in the end."""


class KernelEntry(Record):
    """A function of registered kernels. ``jumped_to``: not an entry of the table itself, but what one ends in."""

    boxed: bool
    """Every kernel that has it has it as its boxed function."""
    has_unboxed: bool
    """Some kernel that has it as its boxed function has an unboxed one, too."""
    jumped_to: bool
    operators: tuple[int, ...]
    """OperatorDefs whose tables have such a kernel."""


class RegisteredKernels:
    """Answers for one process; the tables are gone through when it is first asked."""

    def __init__(self, dispatcher: Dispatcher, jumps: Jumps) -> None:
        self._dispatcher = dispatcher
        self._jumps = jumps
        self._found: dict[int, KernelEntry | None] = {}
        self._reached: dict[int, dict[int, set[int]]] = {}
        """Entries that jump to a function, by the beginning of its module."""

    def at(self, start: int, module: Module) -> KernelEntry | None:
        """The entries whose kernel is the function at ``start``; None where no registered kernel has it."""
        if start not in self._found:
            self._found[start] = self._look(start, module)
        return self._found[start]

    def _look(self, start: int, module: Module) -> KernelEntry | None:
        direct = self._definitions_by_word.get(start)
        if direct:
            return self._entry(start, {start}, direct, False)
        entries = self._reached_in(module).get(start, set())
        definitions = {each for entry in entries for each in self._definitions_by_word[entry]}
        return self._entry(start, entries, definitions, True) if entries else None

    def _entry(self, start: int, entries: set[int], definitions: Iterable[int], jumped_to: bool) -> KernelEntry | None:
        boxed = unboxed = both = False
        operators = set()
        for operator, kernel in self._kernels(definitions):
            if jumped_to and not any(self._leads(one, kernel, start) for one in entries):
                continue
            if kernel.boxed in entries:
                boxed, both = True, both or bool(kernel.unboxed)
            elif kernel.unboxed in entries or kernel.sym_unboxed in entries:
                unboxed = True
            else:
                continue
            operators.add(operator.address)
        if not operators:
            return None
        return KernelEntry(boxed and not unboxed, both, jumped_to, tuple(sorted(operators)))

    def _leads(self, entry: int, kernel: KernelFunction, start: int) -> bool:
        return entry in kernel[1:] and start in self._jumps(entry, kernel.functor)

    def _kernels(self, definitions: Iterable[int]) -> Iterable[tuple[Operator, KernelFunction]]:
        for definition in definitions:
            operator = self._dispatcher.by_def(definition)
            if operator is not None:
                for kernel in set(operator.table):
                    if kernel.valid:
                        yield operator, kernel

    @cached_property
    def _definitions_by_word(self) -> dict[int, set[int]]:
        """Every word of every dispatch table, with the operators that have it: functions among them."""
        found: dict[int, set[int]] = {}
        try:
            definitions = self._dispatcher.entries
        except GdbextError:
            return found
        for definition in definitions:
            try:
                words = array("Q", self._dispatcher.read_table(definition))
            except MemoryFault:
                continue
            for word in set(words):
                found.setdefault(word, set()).add(definition)
        found.pop(0, None)
        return found

    def _reached_in(self, module: Module) -> dict[int, set[int]]:
        """Functions that the entries in that module jump to in the end."""
        known = self._reached.get(module.start)
        if known is None:
            known = self._reached[module.start] = self._follow(module)
        return known

    def _follow(self, module: Module) -> dict[int, set[int]]:
        low, high = module.span
        entries = [word for word in self._definitions_by_word if low <= word < high]
        found: dict[int, set[int]] = {}
        if len(entries) > _MOST_ENTRIES:
            return found
        for entry in entries:
            functors = {
                kernel.functor for _, kernel in self._kernels(self._definitions_by_word[entry]) if entry in kernel[1:]
            }
            for functor in functors:
                for target in self._jumps(entry, functor):
                    found.setdefault(target, set()).add(entry)
        return found
