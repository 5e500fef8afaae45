"""What tests of kernel probes share: whether they are permitted here, and whether a tool has placed its own."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest


def _refused() -> str:
    from gdbext.arch import registry
    from gdbext.errors import GdbextError
    from gdbext.probes.bpf.kernel import permitted

    try:
        allowed = permitted(registry.by_name(os.uname().machine))
    except GdbextError:
        allowed = False
    return "" if allowed else "this kernel or container does not permit kernel probes (BPF)"


PROBES = pytest.mark.skipif(bool(_refused()), reason=_refused() or "permitted")


def probes_placed(pid: int, count: int = 2) -> bool:
    """The tool holds its links, one for each library and program, so that every probe is in place."""
    links = 0
    for descriptor in Path(f"/proc/{pid}/fd").glob("*"):
        with contextlib.suppress(OSError):
            links += "bpf_link" in str(descriptor.readlink())
    return links >= count
