"""The kernel probes that are in a process, of any tool, as far as the kernel lists them.

Their breakpoint instructions look like those of a debugger, but the kernel removes them itself, and would not notice if
we did.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import struct
from collections.abc import Callable, Iterator
from functools import partial

from gdbext.engine import libc
from gdbext.engine.arch import architectures

_NEXT_LINK, _LINK_BY_ID, _LINK_INFO = 31, 30, 15
"""The numbers of BPF_LINK_GET_NEXT_ID, BPF_LINK_GET_FD_BY_ID and BPF_OBJ_GET_INFO_BY_FD (include/uapi/linux/bpf.h)."""
_PERF_LINK, _PROBES_LINK = 7, 12
"""Numbers of BPF_LINK_TYPE_PERF_EVENT and BPF_LINK_TYPE_UPROBE_MULTI (enum bpf_link_type)."""
_INFO, _LONGEST_PATH = 256, 4096
_PROBE_LINE = re.compile(r"[pr]\S*\s+(.+?):(0x[0-9a-fA-F]+)")
_PROBE_LINES = ("/sys/kernel/tracing/uprobe_events", "/sys/kernel/debug/tracing/uprobe_events")
"""Probes that perf probe has defined (Documentation/trace/uprobetracer.rst)."""


def listed_probes(pid: int) -> set[tuple[int, int, int]]:
    """(device, inode, offset) of each probe that the kernel lists and that is not for another process: in links of BPF
    since Linux 6.8, 6.6 for single ones, and in tracefs. Needs CAP_SYS_ADMIN."""
    found: set[tuple[int, int, int]] = set()
    own = architectures.own()
    places = [] if not own or not own.probing else [*_linked_places(own.probing.bpf_call, pid)]
    for name in _PROBE_LINES:
        with contextlib.suppress(OSError), open(name, errors="surrogateescape") as file:
            lines = map(_PROBE_LINE.match, file)
            places += [(line[1], [int(line[2], 16)]) for line in lines if line]
    for path, offsets in places:
        with contextlib.suppress(OSError, ValueError):
            status = os.stat(path)  # noqa: PTH116 - pathlib is slow to import
            found.update((status.st_dev, status.st_ino, offset) for offset in offsets)
    return found


def _linked_places(number: int, pid: int) -> Iterator[tuple[str, list[int]]]:
    """(file, offsets) of each link of BPF that has probes; ``number`` is that of bpf(2)."""
    system_call = libc.function("syscall")
    link = ctypes.create_string_buffer(12)
    while system_call(number, _NEXT_LINK, link, len(link)) == 0:
        following = link.raw[4:8]
        descriptor = system_call(number, _LINK_BY_ID, ctypes.create_string_buffer(following + bytes(8), 12), 12)
        link = ctypes.create_string_buffer(following + bytes(8), 12)
        if descriptor < 0:
            continue  # it was removed meanwhile
        try:
            yield from _places_of(partial(_describe, system_call, number, descriptor), pid)
        finally:
            os.close(descriptor)


def _describe(system_call: Callable[..., int], number: int, link: int, given: bytes) -> bytes:
    """The kernel's ``struct bpf_link_info`` of a link; ``given`` are its first bytes in the request. b"" if refused."""
    info = ctypes.create_string_buffer(given, _INFO)
    attributes = ctypes.create_string_buffer(struct.pack("<IIQ", link, _INFO, ctypes.addressof(info)), 16)
    return info.raw if system_call(number, _LINK_INFO, attributes, len(attributes)) == 0 else b""


def _places_of(describe: Callable[[bytes], bytes], pid: int) -> Iterator[tuple[str, list[int]]]:
    """(file, offsets) of a link that has probes: its members uprobe_multi and perf_event.uprobe."""
    path = ctypes.create_string_buffer(_LONGEST_PATH)
    first = describe(b"")
    kind = int.from_bytes(first[:4], "little")
    if kind == _PROBES_LINK and int.from_bytes(first[60:64], "little") in (0, pid):
        count = int.from_bytes(first[52:56], "little")
        offsets = (ctypes.c_uint64 * count)()
        where = (ctypes.addressof(path), ctypes.addressof(offsets), 0, 0, _LONGEST_PATH, count)
        if describe(struct.pack("<16xQQQQII", *where)):
            yield os.fsdecode(path.value), [*offsets]
    elif kind == _PERF_LINK:
        second = describe(struct.pack("<24xQI", ctypes.addressof(path), _LONGEST_PATH))
        if int.from_bytes(second[16:20], "little") in (1, 2):  # BPF_PERF_EVENT_UPROBE, BPF_PERF_EVENT_URETPROBE
            yield os.fsdecode(path.value), [int.from_bytes(second[36:40], "little")]
