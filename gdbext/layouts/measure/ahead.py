"""Measures the layout that a process will need, before it is stopped."""

from __future__ import annotations

import os
import re

from gdbext.errors import GdbextError
from gdbext.targets.system import linux

_MAPPED = re.compile(rb"^\S+ +r-xp +\S+ +\S+ +\d+ +(/.*/libtorch_cpu\.so)$", re.MULTILINE)


def measure_for_process(pid: int, terminal: int | None) -> None:
    """Make sure that the layout of the process's PyTorch is known, or cannot be had.

    Why not, the session says when it looks for it. ``terminal`` is a descriptor for progress. Takes a millisecond where
    the layout is known, and the process runs meanwhile.
    """
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            found = _MAPPED.search(file.read())
        if found is not None:
            _make_known(linux.under_sysroot(linux.process_root(pid), os.fsdecode(found.group(1))), terminal)
    except (OSError, GdbextError):
        return


def _make_known(library: str, terminal: int | None) -> None:
    from gdbext.formats.elf.elf import ElfImage
    from gdbext.layouts import identity, store
    from gdbext.targets.host_files import HostFiles

    build_id = ElfImage.open(library).build_id
    if build_id is None or store.has(build_id):
        return
    package = identity.package_of(library)
    version = identity.torch_version(package, HostFiles())[0]
    if store.of_release(version) or store.nearest_older(version):
        return  # a session tells, by the live structures, whether one of these fits
    from gdbext.layouts.measure.measurement import measure_torch

    measure_torch(package, build_id, terminal)
