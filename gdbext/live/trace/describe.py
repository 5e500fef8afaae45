"""What an operator's table gives for a keyset, read from the process as it is at a stop."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

from gdbext.errors import BadData, GdbextError
from gdbext.model.dispatch.traced_dispatch import LookupResult

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.torch.registry.operators import Operator


class Describer:
    """Reads tables while the process is stopped. ``open_session`` gives a fresh session of the process."""

    def __init__(self, open_session: Callable[[], Session], session: Session, registrations: bool) -> None:
        self._open = open_session
        self._session = session
        self._registrations = registrations

    def operator(self, address: int) -> Operator | None:
        """The operator whose OperatorEntry is at ``address``. Raises BadData, MemoryFault."""
        found = self._session.dispatcher.by_def(address)
        if found is None:  # registered since
            self._renew()
            found = self._session.dispatcher.by_def(address)
        return found

    def find(self, operator: Operator, event: str, bits: int) -> LookupResult:
        """What a lookup with this keyset finds now. Raises BadData (no keyset), MemoryFault."""
        self._session.memory.forget()
        current = self.operator(operator.address)
        if current is None:
            raise BadData(f"{operator.qualified} is not registered any more")
        session = self._session
        keys, kernels = session.dispatcher.keys, session.dispatcher.kernels
        current.forget_table()
        index, kernel = current.kernel_for(bits)
        key = keys.highest_key(bits)
        name = kernels.name(kernel, key, current.name)
        if name.kind == "unknown" and not session.modules.find(kernel.boxed):
            self._renew()
            kernels = self._session.dispatcher.kernels
            name = kernels.name(kernel, key, current.name)
        path, debug = self._registration(current, index)
        where = f" at {name.file}:{name.line}" if name.file else ""
        return LookupResult(
            event=event,
            op=current.name,
            overload=current.overload,
            bits=bits,
            keys=keys.decode(bits),
            key=key,
            table_index=index,
            kernel=name.function + where,
            kind=name.kind,
            valid=kernel.valid,
            boxed=kernel.valid,
            unboxed=kernel.unboxed != 0 or kernel.sym_unboxed != 0,
            fallthrough=kernels.fallthrough(kernel),
            addresses=frozenset((kernel.unboxed, kernel.sym_unboxed, kernel.boxed)) - {0},
            boxed_address=kernel.boxed,
            table_entry=session.dispatcher.table_entry(current.address, index),
            table_bytes=struct.pack("<4Q", *kernel)[: kernels.size],
            path=path,
            registered_at=debug,
        )

    def _registration(self, operator: Operator, index: int) -> tuple[str, str]:
        """(path, registered at), empty where they are not wanted or not proven."""
        if not self._registrations:
            return "", ""
        try:
            entry = self._session.tables.entry(operator, index)
        except GdbextError:
            return "", ""
        return (entry.path, entry.debug) if entry.consistent else ("", "")

    def _renew(self) -> None:
        self._session = self._session.reopened(self._open().target)
