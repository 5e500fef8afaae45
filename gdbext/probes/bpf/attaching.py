"""Places probes: many at once, or one by one where the kernel cannot do that (single_probes.py)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from gdbext.arch.base import Architecture
from gdbext.probes.bpf import single_probes
from gdbext.probes.bpf.kernel import Bpf, Place
from gdbext.probes.bpf.refusal import refused


def attach(
    kernel: Bpf, architecture: Architecture, program: int, path: str, places: Sequence[Place], pid: int
) -> list[int]:
    """The descriptors of links: the program runs at each place of the file, in that process alone.

    Raises ProbesRefused; nothing is left then.
    """
    links: list[int] = []
    try:
        if kernel.has_many:
            links.append(kernel.attach(program, path, places, pid))
        else:
            for link in single_probes.attach(kernel, architecture, program, path, places, pid):
                links.append(link)
    except OSError as error:
        for link in links:
            os.close(link)
        raise refused(f"no probe can be placed in {path}", error) from error
    return links
