"""Tells dispatch-break of operators and kernels that are registered while the program runs.

Internal breakpoints stand on the functions of ``c10::impl::OperatorEntry`` through which every registration goes, with
the OperatorEntry as first argument (OperatorEntry.h, 1.12 to 2.13; dispatcher and schema come by reference, and no
result goes through a hidden argument). The
tables are changed when such a function has returned, so a second one stands at its return address for that long. A
registration costs a stop of 0.3 ms, one of a watched operator the reading of its table; calls cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import gdb

from gdbext.errors import GdbextError
from gdbext.live.hooks.operator_functions import REGISTER_SCHEMA, TORCH, OperatorFunctions
from gdbext.torch.registry.operators import Operator

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

REGISTRATIONS = (
    REGISTER_SCHEMA,
    "_ZN3c104impl13OperatorEntry14registerKernelE",
    "_ZN3c104impl13OperatorEntry17deregisterKernel_E",
    "_ZN3c104impl13OperatorEntry14updateFallbackE",
)
"""How the mangled names of those functions begin. A kernel that goes uncovers another; a fallback is for all operators,
and each is told of it."""
_WORD = (1 << 64) - 1


class GdbStep(gdb.Breakpoint):  # type: ignore[misc]
    """An internal breakpoint that calls a function at each hit and never stops."""

    def __init__(self, address: int, reached: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        super().__init__(f"*{address:#x}", internal=True)
        self.silent = True
        self._reached = reached
        self._failed = failed

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        try:
            self._reached()
        except (GdbextError, gdb.error, OSError) as error:
            self._failed(error)
        return False


class Watch:
    """The breakpoints on registrations, for one run of the program."""

    def __init__(
        self,
        session: Session,
        wanted: Callable[[str], bool],
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """``wanted`` gets an operator's qualified name, ``changed`` is called when such a one is registered or gets a
        kernel, ``failed`` when something could not be read. Raises gdb.error where a breakpoint cannot be set."""
        self._session = session
        self._wanted = wanted
        self._changed = changed
        self._failed = failed
        self._steps: list[GdbStep] = []
        self._returns: dict[int, GdbStep] = {}
        torch = session.modules.named(TORCH)
        self.addresses: list[int] = []
        """Where registrations are seen, that of an operator's definition first; empty where they cannot be."""
        for prefix in REGISTRATIONS:
            self.addresses += OperatorFunctions(session).addresses_named(prefix, [torch] if torch is not None else [])
        for address in self.addresses:
            self._steps.append(GdbStep(address, self._registered, failed))

    def close(self) -> None:
        """Take everything away."""
        for step in [*self._steps, *self._returns.values()]:
            if step.is_valid():
                step.delete()
        self._steps, self._returns = [], {}

    def _registered(self) -> None:
        """At the entry of such a function. Raises gdb.error, MemoryFault, BadData."""
        self._session.memory.forget()
        architecture = self._session.memory.architecture
        entry = int(gdb.parse_and_eval(f"${architecture.argument_registers[0]}")) & _WORD
        if not self._wanted(Operator(self._session.dispatcher, entry).qualified):
            return
        address = int(gdb.parse_and_eval(f"*(unsigned long*)${architecture.stack_pointer}")) & _WORD
        step = self._returns.get(address)
        if step is None:
            self._returns[address] = GdbStep(address, lambda: self._returned(address), self._failed)
        else:
            step.enabled = True

    def _returned(self, address: int) -> None:
        """The tables are up to date now. May raise what ``changed`` does."""
        self._returns[address].enabled = False  # not deleted: gdb is inside its stop()
        self._changed()
