"""Where a process's dispatches can be counted: the lookup that every call makes, and each operator's own redispatch.

``OperatorEntry::lookup`` is out of line in release wheels and gets the operator and the keyset (OperatorEntry.h); it is
inlined into ``at::_ops::NAME::redispatch``, whose keyset is the first argument, behind a hidden result pointer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from gdbext.errors import TargetError
from gdbext.formats.elf import ElfImage
from gdbext.torch.registry.schema_types import hidden_result
from gdbext.torch.stack.roles import operator_method
from gdbext.torch.symbols import LOOKUP, OPERATOR_STRUCT

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.process.modules import Module
    from gdbext.torch.registry.operators import Operator

_PROLOGUE = 64
"""Bytes of a function in which the probe's place is looked for."""
LOOKUP_ARGUMENTS = 2
"""``this`` and the keyset."""


class RedispatchPlace(NamedTuple):
    """An operator's redispatch: its address, the probe's offset in the file, the number of the keyset's argument."""

    operator: Operator
    address: int
    offset: int
    keyset: int | None


class ProbePlaces:
    """Finds the places in libtorch_cpu. Raises TargetError, SymbolFileError where the library cannot be used."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._architecture = session.memory.architecture
        module = session.modules.named(OPERATOR_STRUCT.library)
        if module is None or not isinstance(module.image, ElfImage):
            raise TargetError(
                "libtorch_cpu.so cannot be probed: its file is not there any more",
                why="kernel probes are placed in the file; it was deleted or replaced after the process loaded it",
                help="trace by breakpoints: dispatch-trace OP",
            )
        self.module: Module = module
        self._image = module.image

    @property
    def path(self) -> str:
        """The library as we can open it."""
        return self._session.target.local_path(self.module.path)

    def lookup(self) -> int | None:
        """The offset for ``OperatorEntry::lookup``; None where this build has it inlined."""
        symbolizer = self._session.symbolizer
        found = (symbolizer.symbol_of(name, LOOKUP.library or None) for name in LOOKUP.examples)
        symbol = next((each[1] for each in found if each is not None), None)
        return self._offset(symbol.vaddr, LOOKUP_ARGUMENTS) if symbol is not None else None

    def redispatches(self) -> Iterator[RedispatchPlace]:
        """The places of all operators that have one."""
        operators = {operator.struct: operator for operator in self._session.dispatcher.operators()}
        index = self._session.symbolizer.index(self.module)
        for symbol in index.matching(OPERATOR_STRUCT.names[0].encode()) if index is not None else ():
            struct, event = operator_method(symbol.name)
            operator = operators.get(struct)
            if event != "redispatch" or operator is None or not symbol.is_function or "." in symbol.name:
                continue
            hidden = hidden_result(operator.schema.text) if operator.schema is not None else None
            offset = self._offset(symbol.vaddr, 1 + bool(hidden))
            if offset is not None:
                keyset = None if hidden is None else int(hidden)
                yield RedispatchPlace(operator, self.module.base + symbol.vaddr, offset, keyset)

    def _offset(self, vaddr: int, kept: int) -> int | None:
        code = self._image.read(vaddr, _PROLOGUE)
        at = self._architecture.probe_offset(code, kept) if code else None
        return None if at is None else self._image.file_offset(vaddr + at)
