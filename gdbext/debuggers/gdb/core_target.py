"""A core that gdb has loaded."""

from __future__ import annotations

import os
from collections.abc import Sequence

import gdb

from gdbext.debuggers.gdb.target import gdb_sysroot, selected_of
from gdbext.targets.base import Thread
from gdbext.targets.core_target import CoreTarget


class GdbCoreTarget(CoreTarget):
    """A core that gdb has loaded: read by CoreTarget, with gdb's thread numbers and selection.

    ``sysroot`` None means the one that is set in gdb.
    """

    debugger = "gdb"

    def __init__(self, path: str, inferior: gdb.Inferior, sysroot: str | None = None) -> None:
        super().__init__(path, gdb_sysroot() if sysroot is None else sysroot)
        self._program = getattr(inferior.progspace, "filename", None)
        numbers = {thread.ptid[1] or thread.ptid[0]: thread.num for thread in inferior.threads()}
        for thread in super().threads():
            thread.number = numbers.get(thread.tid)

    def threads(self) -> Sequence[Thread]:
        """All threads, by gdb's number; those that gdb does not show come last."""
        return sorted(super().threads(), key=lambda thread: (thread.number is None, thread.number or thread.tid))

    def selected_thread(self) -> Thread | None:
        """gdb's selected thread, asked anew each time."""
        return selected_of(self.threads())

    def local_path(self, path: str) -> str:
        """Below gdb's sysroot; the program is the one that gdb was given, where it is not found there."""
        local = super().local_path(path)
        if self._program and path == self.executable() and not os.path.exists(local):  # noqa: PTH110
            return str(self._program)
        return local
