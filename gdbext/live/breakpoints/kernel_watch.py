"""Notices that Inductor has loaded kernels while the program runs.

A kernel's library is loaded by dlopen, and its name is known when the module that Inductor wrote has been executed:
before that module's first call, which begins with checks of its arguments (torch/csrc/dynamo/guards.cpp). A trap on
those checks is on for a few of them after each dlopen; otherwise calls of compiled code cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.torch.symbols import CALL_CHECKS

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.breakpoints.conditions import StoppedThread
    from gdbext.live.breakpoints.setter import BreakpointSetter, Trap

_LOADERS = (("dlopen", "libc.so.6"), ("dlopen", "libdl.so.2"), ("cuModuleLoadData", None), ("cuModuleLoadDataEx", None))
"""glibc's function, before and since 2.34; and those of libcuda that load kernels of Triton."""
_CHECKS = 8
"""Other threads may be in compiled code as well, while a module is being loaded."""


class KernelWatch:
    """The traps of one run of the program."""

    def __init__(
        self,
        session: Session,
        setter: BreakpointSetter,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """``changed`` is called when kernels may have come, ``failed`` when something could not be read. Raises
        TargetError where a trap cannot be set."""
        self._changed = changed
        self._failed = failed
        self._left = 0
        find = session.symbolizer.address_of
        checks = {find(name, CALL_CHECKS.library) for name in CALL_CHECKS.names} - {None}
        loaders = {find(*place) for place in _LOADERS} - {None}
        self.works = bool(checks and loaders)
        self._checks: list[Trap] = [setter.set_trap(address, self._checked) for address in checks if address]
        self._loaders: list[Trap] = [setter.set_trap(address, self._loads) for address in loaders if address]
        self._enable(False)

    def close(self) -> None:
        """Take everything away."""
        for trap in (*self._checks, *self._loaders):
            trap.delete()
        self._checks, self._loaders = [], []

    def _enable(self, wanted: bool) -> None:
        for trap in self._checks:
            trap.enable(wanted)

    def _loads(self, _: StoppedThread) -> None:
        """A library is about to be loaded."""
        self._left = _CHECKS
        self._enable(True)

    def _checked(self, _: StoppedThread) -> None:
        """Compiled code was entered."""
        self._left -= 1
        if self._left <= 0:
            self._enable(False)  # not deleted: the debugger is calling us for it
        try:
            self._changed()
        except (GdbextError, OSError) as error:
            self._failed(error)
