"""libtorch_cpu as a file that probes are placed in, and the place for a redispatch that has the lookup inlined.

The keyset is the first argument of ``at::_ops::NAME::redispatch``, behind a hidden result pointer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.errors import TargetError
from gdbext.formats.elf.elf import ElfImage
from gdbext.model.record import Record
from gdbext.torch.registry.schema_types import hidden_result
from gdbext.torch.symbols import OPERATOR_STRUCT

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.process.modules import Module
    from gdbext.torch.registry.operators import Operator
    from gdbext.torch.torch_symbol import TorchSymbol

_PROLOGUE = 64
"""Bytes of a function in which the probe's place is looked for."""


class RedispatchPlace(Record):
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
                help="trace by breakpoints: dispatch-trace OP --engine breakpoints",
            )
        self.module: Module = module
        self._image = module.image

    @property
    def path(self) -> str:
        """The library as we have opened it: where it was replaced on disk, or another file is mounted over it, the one
        that the process has mapped."""
        return self._image.path

    def redispatch(self, operator: Operator, address: int) -> RedispatchPlace | None:
        """The place of the operator's redispatch at ``address``; None where there is none that is cheap."""
        hidden = hidden_result(operator.schema.text) if operator.schema is not None else None
        offset = self._offset(address - self.module.base, 1 + bool(hidden))
        if offset is None:
            return None
        return RedispatchPlace(operator, address, offset, None if hidden is None else int(hidden))

    def cheap_place(self, function: TorchSymbol) -> int:
        """The offset in the file of a place in the function where a probe is cheap. Raises TargetError."""
        found = function.find(self._session.symbolizer)
        offset = self._offset(found[1].vaddr, 0) if found is not None and found[0].path == self.module.path else None
        if offset is None:
            raise TargetError(f"libtorch_cpu.so has no place for a probe in {function.purpose}")
        return offset

    def file_offset(self, address: int) -> int | None:
        """Where the library's file has the code at ``address``."""
        return self._image.file_offset(address - self.module.base)

    def _offset(self, vaddr: int, kept: int) -> int | None:
        code = self._image.read(vaddr, _PROLOGUE)
        at = self._architecture.probe_offset(code, kept) if code else None
        return None if at is None else self._image.file_offset(vaddr + at)
