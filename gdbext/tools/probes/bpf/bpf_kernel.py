"""bpf(2) through the bare system call: maps, programs, probes of one process, and why the kernel refuses them.

Commands, map types and attributes: include/uapi/linux/bpf.h of Linux 6.6 (union bpf_attr). Everything is gone with its
descriptor, however this process ends.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gdbext.engine import libc
from gdbext.engine.arch import Architecture
from gdbext.engine.targets.live.proc_checks import status_fields
from gdbext.errors import ProbesRefused
from gdbext.tools.probes.bpf import bpf_program

_CAPABILITIES = {39: "CAP_BPF", 38: "CAP_PERFMON"}
"""include/uapi/linux/capability.h; CAP_SYS_ADMIN stands for both."""
_SYS_ADMIN, _FILTERED = 21, "2"  # SECCOMP_MODE_FILTER (proc_pid_status(5))
_FIRST, _FIRST_WITH_MANY = (5, 15), (6, 6)
"""Linux with cookies of perf events (bpf_get_attach_cookie), and with uprobe_multi (BPF_TRACE_UPROBE_MULTI)."""
_BREAKPOINTS = "trace by breakpoints: dispatch-trace OP --engine breakpoints"


class Circumstances(NamedTuple):
    """The kernel's facts about a process: its release, the process's effective capabilities as bits, whether a seccomp
    filter is over it, whether it is root in a user namespace only."""

    release: str
    capabilities: int
    is_filtered: bool
    is_namespaced: bool

    @property
    def missing(self) -> list[str]:
        """The capabilities that the process lacks."""
        if self.capabilities >> _SYS_ADMIN & 1:
            return []
        return [name for number, name in _CAPABILITIES.items() if not self.capabilities >> number & 1]

    @property
    def release_numbers(self) -> tuple[int, int]:
        """The kernel's version, that of the newest ones where its release says none."""
        numbers = re.match(r"(\d+)\.(\d+)", self.release)
        return (int(numbers[1]), int(numbers[2])) if numbers else _FIRST_WITH_MANY

    @property
    def lacks_many(self) -> bool:
        """The kernel has no probes on many places at once."""
        return self.release_numbers < _FIRST_WITH_MANY


def circumstances() -> Circumstances:
    """The circumstances of this process."""
    status, identities = status_fields("/proc/self/status"), ""
    with contextlib.suppress(OSError), open("/proc/self/uid_map") as file:
        identities = file.read()
    is_namespaced = identities.split()[:2] not in ([], ["0", "0"])
    capabilities = int(status.get("CapEff") or "0", 16)
    return Circumstances(os.uname().release, capabilities, status.get("Seccomp", "") == _FILTERED, is_namespaced)


def refusal(what: str, error: OSError, here: Circumstances | None = None) -> ProbesRefused:
    """The error that says what is missing; ``here``: other circumstances than ours."""
    here = here or circumstances()
    help_ = _BREAKPOINTS
    if error.errno in (errno.EPERM, errno.EACCES):
        why, help_ = _permission(here)
    elif error.errno == errno.ESRCH:
        why, help_ = "the process has exited meanwhile", "look at one that still runs: pgrep -af python"
    elif error.errno == errno.ENOSYS:
        why = "this kernel was built without BPF (CONFIG_BPF_SYSCALL)"
    elif here.release_numbers < _FIRST:
        why = f"Linux {here.release} has no probes that know their place: 5.15 is the first"
    elif error.errno in (errno.EIO, errno.EOPNOTSUPP, errno.ENOENT):
        why = "the file was deleted or replaced, or is on a file system that the kernel does not probe"
    else:
        why = f"Linux {here.release} does not take it: it may have been built without uprobes"
    return ProbesRefused(f"{what}: {error.strerror}", why=why, help=help_)


def _permission(here: Circumstances) -> tuple[str, str]:
    """(why we are not permitted to use probes, what would permit it)."""
    if here.missing:
        options = " ".join(f"--cap-add={name[4:]}" for name in here.missing)
        who = "" if os.geteuid() == 0 else "as root "
        return (
            f"kernel probes need {' and '.join(here.missing)}, or root; this process lacks that",
            f"run it {who}on the host, or docker run {options}; or {_BREAKPOINTS}",
        )
    if here.is_namespaced:
        why = "we are root in a user namespace only, and the kernel asks outside of it"
        return why, f"run it on the host; or {_BREAKPOINTS}"
    if here.is_filtered:
        return (
            "a seccomp profile forbids bpf(2), as a container's default one does",
            f"docker run --security-opt seccomp=unconfined, or run it on the host; or {_BREAKPOINTS}",
        )
    return (
        "the kernel is locked down (kernel_lockdown(7)), or a security module forbids bpf(2)",
        f"cat /sys/kernel/security/lockdown; or {_BREAKPOINTS}",
    )


_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_NEXT, _PROG_LOAD, _MAP_LOOKUP_BATCH, LINK_CREATE = 0, 1, 2, 4, 5, 24, 28
_MAP_TAKE, _TRIES = 21, 20
"""The number of the command BPF_MAP_LOOKUP_AND_DELETE_ELEM; and how often a program is loaded whose verification ends
because a signal has come, as from a terminal that is resized (EAGAIN; do_check, kernel/bpf/verifier.c)."""
HASH, ARRAY, PER_CPU_HASH, PER_CPU_ARRAY, LRU_HASH, RING = 1, 2, 5, 6, 9, 27
"""BPF_MAP_TYPE_HASH, _ARRAY, _PERCPU_HASH, _PERCPU_ARRAY, _LRU_HASH, _RINGBUF."""
_ON_DEMAND = 1
"""The flag for maps without memory of their own: BPF_F_NO_PREALLOC."""
_PROGRAM_KPROBE, _UPROBE_MULTI = 2, 48
"""Numbers of BPF_PROG_TYPE_KPROBE and BPF_TRACE_UPROBE_MULTI."""
_LOG_SIZE = 1 << 16


class ProbePlace(NamedTuple):
    """A probe: the offset in the file, and the number that the program sees (BPF_FUNC_get_attach_cookie)."""

    offset: int
    cookie: int


class Bpf:
    """Calls the system call bpf(2)."""

    def __init__(self, number: int, has_many: bool = True, perf_call: int = 0) -> None:
        """``number`` of the system call, ``perf_call`` that of perf_event_open(2); ``has_many``: the kernel places many
        probes at once."""
        self._number = number
        self.has_many = has_many
        self.perf_call = perf_call
        self._system_call = libc.function("syscall")

    @classmethod
    def of(cls, architecture: Architecture) -> Bpf:
        """The system call of that architecture. Raises ProbesRefused."""
        if not architecture.probing:
            raise ProbesRefused(
                f"kernel probes are not supported on {architecture.title}",
                why="where they are cheap is known for each architecture by itself",
                help="trace by breakpoints: dispatch-trace OP --engine breakpoints",
            )
        return cls(architecture.probing.bpf_call, not circumstances().lacks_many, architecture.probing.perf_call)

    def __call__(self, command: int, attributes: bytes) -> int:
        """Call bpf(2) with these attributes. Raises OSError."""
        size = len(attributes)
        return self.system_call(self._number, command, ctypes.create_string_buffer(attributes, size), size)

    def system_call(self, number: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
        """Make a system call. Raises OSError."""
        found: int = self._system_call(number, *arguments)
        if found < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return found

    def memory(self, kind: int, key_size: int, value_size: int, entries: int) -> int:
        """The descriptor of any map; for a ring, ``entries`` are its bytes. Raises ProbesRefused."""
        flags = _ON_DEMAND if kind == HASH else 0
        try:
            return self(_MAP_CREATE, struct.pack("<5I", kind, key_size, value_size, entries, flags))
        except OSError as error:
            raise refusal("a BPF map cannot be made", error) from error

    def put(self, descriptor: int, key: bytes, value: bytes) -> None:
        """Set one entry of a map. Raises OSError."""
        texts = [ctypes.create_string_buffer(part, len(part)) for part in (key, value)]
        self(_MAP_UPDATE, struct.pack("<I4xQQQ", descriptor, *(ctypes.addressof(text) for text in texts), 0))

    def get(self, descriptor: int, key: bytes, size: int, is_taken: bool = False) -> bytes | None:
        """The value of one entry of a map, None without that entry; ``is_taken``: it is removed (a hash: Linux 5.14).
        Raises OSError."""
        name, value = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(size)
        addresses = (ctypes.addressof(text) for text in (name, value))
        try:
            self(_MAP_TAKE if is_taken else _MAP_LOOKUP, struct.pack("<I4xQQQ", descriptor, *addresses, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return value.raw

    def keys(self, descriptor: int, size: int) -> Iterator[ctypes.Array[ctypes.c_char]]:
        """The keys of a hash, ``size`` bytes each; the one that was given may be taken away. Raises OSError."""
        key, following = (ctypes.create_string_buffer(size) for _ in range(2))
        before = 0
        while True:
            try:
                self(_MAP_NEXT, struct.pack("<I4xQQ", descriptor, before, ctypes.addressof(following)))
            except OSError as error:
                if error.errno == errno.ENOENT:
                    return
                raise
            key.raw = following.raw
            before = ctypes.addressof(key)
            yield key

    def totals(self, descriptor: int, key_size: int) -> Iterator[tuple[bytes, int]]:
        """(key, sum over all CPUs) of every entry of a per-CPU map of 64-bit counters. Raises OSError."""
        processors = possible_processors()
        values = ctypes.create_string_buffer(8 * processors)
        for key in self.keys(descriptor, key_size):
            self(_MAP_LOOKUP, struct.pack("<I4xQQQ", descriptor, ctypes.addressof(key), ctypes.addressof(values), 0))
            yield key.raw, sum(struct.unpack(f"<{processors}Q", values.raw))

    def values(self, descriptor: int, entries: int, size: int) -> bytes:
        """All values of an array, ``size`` bytes each, one after the other. Raises OSError."""
        after, keys = ctypes.create_string_buffer(4), ctypes.create_string_buffer(4 * entries)
        found = ctypes.create_string_buffer(size * entries)
        addresses = (ctypes.addressof(buffer) for buffer in (after, keys, found))
        self(_MAP_LOOKUP_BATCH, struct.pack("<QQQQIIQQ", 0, *addresses, entries, descriptor, 0, 0))
        return found.raw

    def program(self, code: bytes) -> int:
        """The descriptor of a verified program. Raises ProbesRefused with the verifier's last words."""
        text, license_name = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
        kind = _UPROBE_MULTI if self.has_many else 0

        def load(log_level: int, log_size: int, log: int) -> int:
            words = (_PROGRAM_KPROBE, len(code) // 8, ctypes.addressof(text), ctypes.addressof(license_name))
            rest = (log_level, log_size, log, 0, 0, b"", 0, kind, 0)
            attributes = struct.pack("<IIQQIIQII16sIII", *words, *rest)
            for _ in range(_TRIES):
                with contextlib.suppress(BlockingIOError):
                    return self(_PROG_LOAD, attributes)
            return self(_PROG_LOAD, attributes)

        try:
            return load(0, 0, 0)
        except OSError as error:
            log = ctypes.create_string_buffer(_LOG_SIZE)
            with contextlib.suppress(OSError):
                return load(1, _LOG_SIZE, ctypes.addressof(log))
            said = "; ".join(log.value.decode(errors="replace").strip().splitlines()[-2:])
            raise refusal(f"the kernel refuses the BPF program ({said or 'no reason given'})", error) from error

    def attach(self, program: int, path: str, places: Sequence[ProbePlace], pid: int) -> int:
        """The descriptor of a link: the program runs at each place of the file, in that process alone. Raises OSError,
        also where not ``has_many``."""
        count = len(places)
        offsets = (ctypes.c_uint64 * count)(*(place.offset for place in places))
        cookies = (ctypes.c_uint64 * count)(*(place.cookie for place in places))
        name = ctypes.create_string_buffer(os.fsencode(path))
        pointers = (ctypes.addressof(name), ctypes.addressof(offsets), 0, ctypes.addressof(cookies))
        attributes = struct.pack("<4I4Q3I4x", program, 0, _UPROBE_MULTI, 0, *pointers, count, 0, pid)
        return self(LINK_CREATE, attributes)


def permitted(architecture: Architecture, everywhere: bool = False) -> bool:
    """True if we may load a BPF program, so that probes can be expected to work; ``everywhere``: thousands of them."""
    try:
        kernel = Bpf.of(architecture)
        if everywhere and not kernel.has_many:
            return False
        os.close(kernel.program(bpf_program.end()))
    except ProbesRefused:
        return False
    return True


def possible_processors() -> int:
    """Number of values that a per-CPU map has for each key: "0-3,6" counts to the highest one."""
    with open("/sys/devices/system/cpu/possible") as file:
        return int(file.read().strip().replace(",", "-").split("-")[-1]) + 1
