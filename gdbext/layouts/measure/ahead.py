"""Measures the layout that a process will need, before it is stopped."""

from __future__ import annotations

import os
import re

from gdbext.errors import GdbextError
from gdbext.formats.elf import ElfImage
from gdbext.layouts import identity, store
from gdbext.targets import linux
from gdbext.targets.host_files import HostFiles

_MAPPED = re.compile(rb"^\S+ +r-xp +\S+ +\S+ +\d+ +(/.*/%s)$" % store.TORCH_LIBRARY.encode(), re.MULTILINE)


def measure_for_process(pid: int, terminal: int | None) -> None:
    """Make sure that the layout of the process's PyTorch is known, or cannot be had.

    Why not, the session says when it looks for it. ``terminal`` is a descriptor for progress. Takes a millisecond where
    the layout is known, and the process runs meanwhile.
    """
    try:
        with open(f"/proc/{pid}/maps", "rb") as file:
            found = _MAPPED.search(file.read())
        if found is None:
            return
        library = linux.under_sysroot(linux.process_root(pid), os.fsdecode(found.group(1)))
        build_id = ElfImage.open(library).build_id
        if build_id is None or _is_known(build_id) or _is_probed_first(library):
            return
        from gdbext.layouts.measure.measurement import measure_torch

        measure_torch(identity.package_of(library), build_id, terminal)
    except (OSError, GdbextError):
        return


def _is_known(build_id: str) -> bool:
    return build_id in store.index()["build_ids"] or (store.layout_cache() / f"{build_id}.json").exists()


def _is_probed_first(library: str) -> bool:
    """A layout of the same release is shipped: only the live process can tell whether it fits."""
    version = identity.torch_version(identity.package_of(library), HostFiles())[0]
    return any(store.release(each) == store.release(version) for _, each in store.by_version(version))
