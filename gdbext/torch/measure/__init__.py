"""Measures layouts from installed headers; never on the way to a report.

Here is decided whether the layout of a process must be measured before it is stopped; what measures is imported only
then.
"""

from __future__ import annotations

import os

from gdbext.engine.layouts import store
from gdbext.engine.targets.foreign_files import ForeignFiles
from gdbext.engine.targets.host_files import HostFiles
from gdbext.engine.targets.system import proc_files
from gdbext.errors import GdbextError


def measure_for_process(pid: int, terminal: int | None) -> None:
    """Make sure that the layout of the process's PyTorch is known, or cannot be had.

    Why not, the session says when it looks for it. ``terminal`` is a descriptor for progress. Takes a millisecond where
    the layout is known, and the process runs meanwhile.
    """
    try:
        mapped = _mapped_torch(pid)
        if mapped is not None:
            _make_known(ForeignFiles.of_process(pid), mapped, pid, terminal)
    except (OSError, GdbextError):
        return


def _mapped_torch(pid: int) -> str | None:
    """The path of the libtorch_cpu.so whose code the process has mapped."""
    name = f"/{store.TORCH_LIBRARY}\n".encode()
    maps = proc_files.read(f"/proc/{pid}/maps")
    at = maps.find(name)
    while at >= 0:
        line = maps[maps.rfind(b"\n", 0, at) + 1 : at + len(name)]
        if b" r-xp " in line:
            return os.fsdecode(line[line.index(b"/") : -1])
        at = maps.find(name, at + 1)
    return None


def _make_known(files: ForeignFiles, mapped: str, pid: int, terminal: int | None) -> None:
    library = files.local_path(mapped)
    build_id = files.image(library).build_id
    if build_id is None or store.has(build_id):
        return
    version = store.torch_version(store.package_of(library), HostFiles(files))[0]
    if store.of_release(version) or store.nearest_older(version):
        return  # a session tells, by the live structures, whether one of these fits
    from gdbext.torch.measure.measurement import measure_torch  # 15 ms, for unknown builds of PyTorch

    measure_torch(library, build_id, pid, terminal)
