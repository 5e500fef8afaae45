"""bpf(2), through the bare system call: maps, programs, and probes on many places of one file for one process.

Commands, map types and attributes: include/uapi/linux/bpf.h of Linux 6.6 (union bpf_attr). Everything is gone with its
descriptor, however this process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import struct
from collections.abc import Iterator, Sequence

from gdbext.arch.base import Architecture
from gdbext.errors import ProbesRefused
from gdbext.model.record import Record
from gdbext.probes.bpf import bpf_program
from gdbext.probes.bpf.refusal import circumstances, refused

_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_NEXT, _PROG_LOAD, _MAP_LOOKUP_BATCH, _LINK_CREATE = 0, 1, 2, 4, 5, 24, 28
HASH, ARRAY, PER_CPU_HASH, PER_CPU_ARRAY, LRU_HASH, RING = 1, 2, 5, 6, 9, 27
"""BPF_MAP_TYPE_HASH, _ARRAY, _PERCPU_HASH, _PERCPU_ARRAY, _LRU_HASH, _RINGBUF."""
_ON_DEMAND = 1
"""BPF_F_NO_PREALLOC."""
_PROGRAM_KPROBE = 2
_UPROBE_MULTI = 48
"""BPF_PROG_TYPE_KPROBE, BPF_TRACE_UPROBE_MULTI."""
_POSSIBLE = "/sys/devices/system/cpu/possible"
_LOG_SIZE = 1 << 16


class Place(Record):
    """A probe: the offset in the file, and the number that the program sees (BPF_FUNC_get_attach_cookie)."""

    offset: int
    cookie: int


class Bpf:
    """The system call."""

    def __init__(self, number: int, has_many: bool = True) -> None:
        """``has_many``: the kernel places many probes at once."""
        self._number = number
        self.has_many = has_many
        self._libc = ctypes.CDLL(None, use_errno=True)

    @classmethod
    def of(cls, architecture: Architecture) -> Bpf:
        """The system call of that architecture. Raises ProbesRefused."""
        if architecture.probing is None:
            raise ProbesRefused(
                f"kernel probes are not supported on {architecture.title}",
                why="where they are cheap is known for each architecture by itself",
                help="trace by breakpoints: dispatch-trace OP --engine breakpoints",
            )
        return cls(architecture.probing.bpf_call, not circumstances().lacks_many)

    def __call__(self, command: int, attributes: bytes) -> int:
        """Raises OSError."""
        size = len(attributes)
        return self.system_call(self._number, command, ctypes.create_string_buffer(attributes, size), size)

    def system_call(self, number: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
        """Raises OSError."""
        found: int = self._libc.syscall(number, *arguments)
        if found < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return found

    def map(self, kind: int, key_size: int, entries: int) -> CounterMap:
        """A map of 64-bit counters, one for each processor. Raises ProbesRefused."""
        return CounterMap(self, self.memory(kind, key_size, 8, entries), key_size)

    def memory(self, kind: int, key_size: int, value_size: int, entries: int) -> int:
        """The descriptor of any map; for a ring, ``entries`` are its bytes. Raises ProbesRefused."""
        flags = _ON_DEMAND if kind == HASH else 0
        try:
            return self(_MAP_CREATE, struct.pack("<5I", kind, key_size, value_size, entries, flags))
        except OSError as error:
            raise refused("a BPF map cannot be made", error) from error

    def put(self, descriptor: int, key: bytes, value: bytes) -> None:
        """Set one entry of a map. Raises OSError."""
        texts = [ctypes.create_string_buffer(part, len(part)) for part in (key, value)]
        self(_MAP_UPDATE, struct.pack("<I4xQQQ", descriptor, *(ctypes.addressof(text) for text in texts), 0))

    def get(self, descriptor: int, key: bytes, size: int) -> bytes | None:
        """The value of one entry of a map, None without that entry. Raises OSError."""
        name, value = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(size)
        addresses = (ctypes.addressof(text) for text in (name, value))
        try:
            self(_MAP_LOOKUP, struct.pack("<I4xQQQ", descriptor, *addresses, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return value.raw

    def values(self, descriptor: int, entries: int, size: int) -> bytes:
        """All values of an array, ``size`` bytes each, one after the other. Raises OSError."""
        after, keys = ctypes.create_string_buffer(4), ctypes.create_string_buffer(4 * entries)
        found = ctypes.create_string_buffer(size * entries)
        addresses = (ctypes.addressof(buffer) for buffer in (after, keys, found))
        self(_MAP_LOOKUP_BATCH, struct.pack("<QQQQIIQQ", 0, *addresses, entries, descriptor, 0, 0))
        return found.raw

    def program(self, code: bytes) -> int:
        """The descriptor of a verified program. Raises ProbesRefused with what the verifier said last."""
        try:
            return self._load(code, None)
        except OSError as error:
            log = ctypes.create_string_buffer(_LOG_SIZE)
            with contextlib.suppress(OSError):
                return self._load(code, log)
            said = "; ".join(log.value.decode(errors="replace").strip().splitlines()[-2:])
            raise refused(f"the kernel refuses the BPF program ({said or 'no reason given'})", error) from error

    def _load(self, code: bytes, log: ctypes.Array[ctypes.c_char] | None) -> int:
        text, licence = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
        size, level, where = (0, 0, 0) if log is None else (_LOG_SIZE, 1, ctypes.addressof(log))
        attributes = struct.pack(
            "<IIQQIIQII16sIII", _PROGRAM_KPROBE, len(code) // 8, ctypes.addressof(text), ctypes.addressof(licence),
            level, size, where, 0, 0, b"", 0, _UPROBE_MULTI if self.has_many else 0, 0,
        )  # fmt: skip
        return self(_PROG_LOAD, attributes)

    def attach(self, program: int, path: str, places: Sequence[Place], pid: int) -> int:
        """The descriptor of a link: the program runs at each place of the file, in that process alone. Raises OSError,
        also where not ``has_many``."""
        count = len(places)
        offsets = (ctypes.c_uint64 * count)(*(place.offset for place in places))
        cookies = (ctypes.c_uint64 * count)(*(place.cookie for place in places))
        name = ctypes.create_string_buffer(os.fsencode(path))
        attributes = struct.pack(
            "<4I4Q3I4x", program, 0, _UPROBE_MULTI, 0, ctypes.addressof(name), ctypes.addressof(offsets), 0,
            ctypes.addressof(cookies), count, 0, pid,
        )  # fmt: skip
        return self(_LINK_CREATE, attributes)


class CounterMap:
    """A map of counters, read from outside."""

    def __init__(self, bpf: Bpf, descriptor: int, key_size: int) -> None:
        self._bpf = bpf
        self.descriptor = descriptor
        self._key_size = key_size
        self._processors = possible_processors()

    def totals(self) -> Iterator[tuple[bytes, int]]:
        """(key, sum over all processors) of every entry. Raises OSError."""
        key, following = (ctypes.create_string_buffer(self._key_size) for _ in range(2))
        values = ctypes.create_string_buffer(8 * self._processors)
        unpack = struct.Struct(f"<{self._processors}Q").unpack
        before = 0
        while True:
            try:
                self._bpf(_MAP_NEXT, struct.pack("<I4xQQ", self.descriptor, before, ctypes.addressof(following)))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return
                raise
            key.raw = following.raw
            before = ctypes.addressof(key)
            self._bpf(_MAP_LOOKUP, struct.pack("<I4xQQQ", self.descriptor, before, ctypes.addressof(values), 0))
            yield key.raw, sum(unpack(values.raw))


def permitted(architecture: Architecture, everywhere: bool = False) -> bool:
    """We may load a BPF program here, so that probes can be expected to work; ``everywhere``: thousands of them."""
    try:
        kernel = Bpf.of(architecture)
        if everywhere and not kernel.has_many:
            return False
        os.close(kernel.program(bpf_program.end()))
    except ProbesRefused:
        return False
    return True


def possible_processors() -> int:
    """How many values a per-CPU map has for each key: "0-3,6" counts to the highest one."""
    with open(_POSSIBLE) as file:
        return int(file.read().strip().replace(",", "-").split("-")[-1]) + 1
