"""Measures layouts from installed headers; never runs while a report is produced.

This file decides whether the layout of a process must be measured before the process is stopped; the code that measures
is imported only then.
"""

from __future__ import annotations

import os
from contextlib import suppress

from gdbext.engine.layouts import store
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.host_files import HostFiles
from gdbext.engine.targets.system import proc_files
from gdbext.errors import GdbextError


def measure_for_process(pid: int, terminal: int | None) -> None:
    """Measure the layout of the PyTorch of process ``pid``, while it runs, if no layout of that build is known. An
    error is ignored here: the session that follows says why there is none. ``terminal`` is a file descriptor for
    progress."""
    with suppress(OSError, GdbextError):
        name = f"/{store.TORCH_LIBRARY}".encode()
        mappings = proc_files.read(f"/proc/{pid}/maps").splitlines()
        code = next((line for line in mappings if line.endswith(name) and b" r-xp " in line), None)
        if not code:
            return
        files = ForeignFiles.of_process(pid)
        library = files.local_path(os.fsdecode(code[code.index(b"/") :]))
        build_id = files.image(library).build_id
        if build_id is None or store.has(build_id):
            return
        version = store.torch_version(store.package_of(library), HostFiles(files))[0]
        if store.of_release(version) or store.nearest_older(version):
            return  # a session tells, by the live structures, whether one of these fits
        from gdbext.torch.measure.measurement import measure_torch  # 15 ms, for unknown builds of PyTorch

        measure_torch(library, build_id, pid, terminal)
