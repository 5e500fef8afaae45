"""Places probes: many at once, or one by one where the kernel cannot do that (single_probes.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.arch.base import Architecture
from gdbext.probes.bpf import single_probes
from gdbext.probes.bpf.kernel import Bpf, Place


def attach(
    kernel: Bpf, architecture: Architecture, program: int, path: str, places: Sequence[Place], pid: int
) -> Iterator[int]:
    """The descriptors of links, when they are there: the program runs at each place of the file, in that process alone.

    Raises OSError.
    """
    if kernel.has_many:
        yield kernel.attach(program, path, places, pid)
    else:
        yield from single_probes.attach(kernel, architecture, program, path, places, pid)
