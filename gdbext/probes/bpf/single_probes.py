"""Probes one by one, for kernels before 6.6, which have none on many places: each is a perf event of its own.

``struct perf_event_attr``: include/uapi/linux/perf_event.h; the type of such events is in sysfs
(Documentation/ABI/testing/sysfs-bus-event_source-devices). The link is a BPF_LINK_TYPE_PERF_EVENT with a cookie, since
Linux 5.15. The event is one thread's, but the program runs wherever its process hits the probe
(kernel/trace/trace_uprobe.c, __uprobe_perf_func). To take one away takes the kernel 0.08 s, one after the other.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator, Sequence

from gdbext.arch.base import Architecture
from gdbext.errors import ProbesRefused
from gdbext.probes.bpf.kernel import Bpf, Place

MOST = 250
"""Probes; more would take longer than 20 seconds to take away."""
_TYPE = "/sys/bus/event_source/devices/uprobe/type"
_LINK_CREATE, _PERF_EVENT = 28, 41
"""BPF_LINK_CREATE, BPF_PERF_EVENT."""
_ATTRIBUTES = struct.Struct("<II5QIIQQ")
"""Type and size; config to flags; wakeup_events, bp_type; config1: the path, config2: the offset."""
_SIZE = 128
"""PERF_ATTR_SIZE_VER7."""
_CLOSE_ON_EXEC = 8
"""PERF_FLAG_FD_CLOEXEC."""


def check(count: int) -> None:
    """Raises ProbesRefused for too many places."""
    if count > MOST:
        raise ProbesRefused(
            f"this needs {count} probes, and the kernel can only place them one by one",
            why="probes on many places at once came with Linux 6.6; to take a single one away lasts 0.08 s",
            help="name the operators: dispatch-top mm; or trace by breakpoints: dispatch-trace OP --engine breakpoints",
        )


def attach(
    kernel: Bpf, architecture: Architecture, program: int, path: str, places: Sequence[Place], pid: int
) -> Iterator[int]:
    """The descriptor of a link for each place, when it is there. Raises OSError."""
    call = architecture.probing.perf_call if architecture.probing is not None else 0
    with open(_TYPE) as file:
        kind = int(file.read())
    name = ctypes.create_string_buffer(os.fsencode(path))
    for place in places:
        numbers = (kind, _SIZE, 0, 0, 0, 0, 0, 0, 0, ctypes.addressof(name), place.offset)
        attributes = ctypes.create_string_buffer(_ATTRIBUTES.pack(*numbers), _SIZE)
        event = kernel.system_call(call, attributes, pid, -1, -1, _CLOSE_ON_EXEC)
        try:
            yield kernel(_LINK_CREATE, struct.pack("<4IQ", program, event, _PERF_EVENT, 0, place.cookie))
        finally:
            os.close(event)  # the link keeps it
