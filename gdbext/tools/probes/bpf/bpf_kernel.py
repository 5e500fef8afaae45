"""bpf(2) through the bare system call: maps, programs, probes of one process, and why the kernel refuses them.

Commands, map types and attributes: include/uapi/linux/bpf.h of Linux 6.6 (union bpf_attr).
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
from gdbext.engine.targets.system.proc_files import status_fields
from gdbext.errors import ProbesRefused
from gdbext.tools.probes.bpf import bpf_program

_FIRST, _FIRST_WITH_MANY = (5, 15), (6, 6)
"""Linux with cookies of perf events (bpf_get_attach_cookie), and with uprobe_multi (BPF_TRACE_UPROBE_MULTI)."""
_BREAKPOINTS = "trace by breakpoints: dispatch-trace OP --engine breakpoints"


class Circumstances(NamedTuple):
    """The facts that decide whether a process may use BPF."""

    release: str
    """The kernel's release: "6.8.0-45-generic"."""
    capabilities: int
    """The process's effective capabilities, as bits."""
    is_filtered: bool
    """A seccomp filter restricts the process."""
    is_namespaced: bool
    """The process is in a user namespace other than the initial one."""

    @property
    def missing(self) -> list[str]:
        """The needed capabilities that the process lacks (numbers: include/uapi/linux/capability.h). CAP_SYS_ADMIN, 21,
        includes them."""
        if self.capabilities >> 21 & 1:
            return []
        return [name for number, name in ((39, "CAP_BPF"), (38, "CAP_PERFMON")) if not self.capabilities >> number & 1]

    @property
    def release_numbers(self) -> tuple[int, int]:
        """The kernel's version; 6.6 if its release names none."""
        numbers = re.match(r"(\d+)\.(\d+)", self.release)
        return (int(numbers[1]), int(numbers[2])) if numbers else _FIRST_WITH_MANY

    @property
    def lacks_many(self) -> bool:
        """True if the kernel cannot place many probes at once."""
        return self.release_numbers < _FIRST_WITH_MANY


def circumstances() -> Circumstances:
    """The circumstances of this process."""
    status, uid_map = status_fields("/proc/self/status"), ""
    with contextlib.suppress(OSError), open("/proc/self/uid_map") as file:
        uid_map = file.read()
    is_namespaced = uid_map.split()[:2] not in ([], ["0", "0"])
    is_filtered = status.get("Seccomp", "") == "2"  # SECCOMP_MODE_FILTER (proc_pid_status(5))
    return Circumstances(os.uname().release, int(status.get("CapEff") or "0", 16), is_filtered, is_namespaced)


def refusal(what: str, error: OSError, here: Circumstances | None = None) -> ProbesRefused:
    """The error that explains why the kernel refused to do something. ``what``: the failure in words ("a BPF map cannot
    be created"); ``here``: the circumstances (default: this process's)."""
    here = here or circumstances()
    help_ = _BREAKPOINTS
    if error.errno in (errno.EPERM, errno.EACCES):
        why, help_ = _permission(here)
    elif error.errno == errno.ESRCH:
        why, help_ = "the process has exited", "choose a running process: pgrep -af python"
    elif error.errno == errno.ENOSYS:
        why = "this kernel was built without BPF (CONFIG_BPF_SYSCALL)"
    elif here.release_numbers < _FIRST:
        why = f"Linux {here.release} has no attach cookies for probes, which Linux 5.15 introduced"
    elif error.errno in (errno.EIO, errno.EOPNOTSUPP, errno.ENOENT):
        why = "the file was deleted or replaced, or is on a file system that the kernel does not probe"
    else:
        why = f"Linux {here.release} rejected it: it may have been built without uprobes"
    return ProbesRefused(f"{what}: {error.strerror}", why=why, help=help_)


def _permission(here: Circumstances) -> tuple[str, str]:
    """(the reason why probes are not permitted, what would permit them)."""
    if here.missing:
        options = " ".join(f"--cap-add={name[4:]}" for name in here.missing)
        who = "" if os.geteuid() == 0 else "as root "
        return (
            f"kernel probes need {' and '.join(here.missing)}, or root; this process does not have that",
            f"run it {who}on the host, or docker run {options}; or {_BREAKPOINTS}",
        )
    if here.is_namespaced:
        why = "this process is root only in a user namespace, but the kernel requires root outside it"
        return why, f"run it on the host; or {_BREAKPOINTS}"
    if here.is_filtered:
        return (
            "a seccomp profile forbids bpf(2); the default profile of containers does",
            f"docker run --security-opt seccomp=unconfined, or run it on the host; or {_BREAKPOINTS}",
        )
    return (
        "the kernel is locked down (kernel_lockdown(7)), or a security module forbids bpf(2)",
        f"cat /sys/kernel/security/lockdown; or {_BREAKPOINTS}",
    )


_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _MAP_NEXT, _PROG_LOAD, _MAP_LOOKUP_BATCH, LINK_CREATE = 0, 1, 2, 4, 5, 24, 28
_MAP_TAKE = 21
"""Number of the command BPF_MAP_LOOKUP_AND_DELETE_ELEM."""
HASH, ARRAY, PER_CPU_HASH, PER_CPU_ARRAY, LRU_HASH, RING = 1, 2, 5, 6, 9, 27
"""BPF_MAP_TYPE_HASH, _ARRAY, _PERCPU_HASH, _PERCPU_ARRAY, _LRU_HASH, _RINGBUF."""
_PROGRAM_KPROBE, _UPROBE_MULTI = 2, 48
"""Numbers of BPF_PROG_TYPE_KPROBE and BPF_TRACE_UPROBE_MULTI."""


class ProbePlace(NamedTuple):
    """A probe: the offset in the file, and the number that the program sees (BPF_FUNC_get_attach_cookie)."""

    offset: int
    cookie: int


class Bpf:
    """Calls the system call bpf(2)."""

    def __init__(self, number: int, has_many: bool = True, perf_call: int = 0) -> None:
        """``number``, ``perf_call``: the numbers of the system calls bpf(2) and perf_event_open(2); ``has_many``: the
        kernel can place many probes at once."""
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
                why="the instructions at which probes are cheap are known only for some architectures",
                help="trace by breakpoints: dispatch-trace OP --engine breakpoints",
            )
        return cls(architecture.probing.bpf_call, not circumstances().lacks_many, architecture.probing.perf_call)

    def __call__(self, command: int, attributes: bytes) -> int:
        """Call bpf(2) with these attributes; its result, often an fd. Raises OSError."""
        size = len(attributes)
        return self.system_call(self._number, command, ctypes.create_string_buffer(attributes, size), size)

    def system_call(self, number: int, *arguments: int | ctypes.Array[ctypes.c_char]) -> int:
        """Make the system call; its result. Raises OSError."""
        result: int = self._system_call(number, *arguments)
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))
        return result

    def memory(self, kind: int, key_size: int, value_size: int, entries: int) -> int:
        """Create a map and return its fd; for a ring, ``entries`` is its size in bytes. Raises ProbesRefused."""
        flags = 1 if kind == HASH else 0  # BPF_F_NO_PREALLOC
        try:
            return self(_MAP_CREATE, struct.pack("<5I", kind, key_size, value_size, entries, flags))
        except OSError as error:
            raise refusal("a BPF map cannot be created", error) from error

    def put(self, descriptor: int, key: bytes, value: bytes) -> None:
        """Set one entry of a map. Raises OSError."""
        buffers = [ctypes.create_string_buffer(part, len(part)) for part in (key, value)]
        self(_MAP_UPDATE, struct.pack("<I4xQQQ", descriptor, *map(ctypes.addressof, buffers), 0))

    def get(self, descriptor: int, key: bytes, size: int, is_taken: bool = False) -> bytes | None:
        """The value of a map's entry, ``size`` bytes; None without that entry. ``is_taken``: also remove it (from Linux
        5.14 on, from a hash). Raises OSError."""
        buffers = ctypes.create_string_buffer(key, len(key)), ctypes.create_string_buffer(size)
        addresses = map(ctypes.addressof, buffers)
        try:
            self(_MAP_TAKE if is_taken else _MAP_LOOKUP, struct.pack("<I4xQQQ", descriptor, *addresses, 0))
        except OSError as error:
            if error.errno == errno.ENOENT:
                return None
            raise
        return buffers[1].raw

    def keys(self, descriptor: int, size: int) -> Iterator[ctypes.Array[ctypes.c_char]]:
        """The keys of a hash, ``size`` bytes each. The caller may remove the entry of the last one. Raises OSError."""
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
        cpus = possible_cpus()
        values = ctypes.create_string_buffer(8 * cpus)
        for key in self.keys(descriptor, key_size):
            self(_MAP_LOOKUP, struct.pack("<I4xQQQ", descriptor, ctypes.addressof(key), ctypes.addressof(values), 0))
            yield key.raw, sum(struct.unpack(f"<{cpus}Q", values.raw))

    def values(self, descriptor: int, entries: int, size: int) -> bytes:
        """All values of an array, ``size`` bytes each, one after the other. Raises OSError."""
        buffers = [ctypes.create_string_buffer(length) for length in (4, 4 * entries, size * entries)]
        addresses = map(ctypes.addressof, buffers)  # of the position for the next call, keys, values
        self(_MAP_LOOKUP_BATCH, struct.pack("<QQQQIIQQ", 0, *addresses, entries, descriptor, 0, 0))
        return buffers[2].raw

    def program(self, code: bytes) -> int:
        """Load and verify a program, and return its fd. Raises ProbesRefused with the verifier's last two lines."""
        text, license_name = ctypes.create_string_buffer(code, len(code)), ctypes.create_string_buffer(b"GPL")
        kind = _UPROBE_MULTI if self.has_many else 0

        def load(log_level: int, log_size: int, log: int) -> int:
            """Load the program; ``log``: address of ``log_size`` bytes for the verifier's messages."""
            words = (_PROGRAM_KPROBE, len(code) // 8, ctypes.addressof(text), ctypes.addressof(license_name))
            rest = (log_level, log_size, log, 0, 0, b"", 0, kind, 0)
            attributes = struct.pack("<IIQQIIQII16sIII", *words, *rest)
            # A signal, as from a terminal that is resized, ends the verification (EAGAIN; do_check, verifier.c).
            for _ in range(20):
                with contextlib.suppress(BlockingIOError):
                    return self(_PROG_LOAD, attributes)
            return self(_PROG_LOAD, attributes)

        try:
            return load(0, 0, 0)
        except OSError as error:
            log = ctypes.create_string_buffer(1 << 16)
            with contextlib.suppress(OSError):
                return load(1, len(log), ctypes.addressof(log))
            reason = "; ".join(log.value.decode(errors="replace").strip().splitlines()[-2:])
            raise refusal(f"the kernel rejected the BPF program ({reason or 'no reason given'})", error) from error

    def attach(self, program: int, path: str, places: Sequence[ProbePlace], pid: int) -> int:
        """Run the program at each place of the file, in that process only, and return the fd of the link. Raises
        OSError, also without ``has_many``."""
        count = len(places)
        offsets = (ctypes.c_uint64 * count)(*(place.offset for place in places))
        cookies = (ctypes.c_uint64 * count)(*(place.cookie for place in places))
        name = ctypes.create_string_buffer(os.fsencode(path))
        pointers = (ctypes.addressof(name), ctypes.addressof(offsets), 0, ctypes.addressof(cookies))
        attributes = struct.pack("<4I4Q3I4x", program, 0, _UPROBE_MULTI, 0, *pointers, count, 0, pid)
        return self(LINK_CREATE, attributes)


def permitted(architecture: Architecture, everywhere: bool = False) -> bool:
    """True if this process may load a BPF program, so that probes probably work. ``everywhere``: the kernel must also
    be able to place thousands of probes at once."""
    try:
        kernel = Bpf.of(architecture)
        if everywhere and not kernel.has_many:
            return False
        os.close(kernel.program(bpf_program.assemble("return 0")))
    except ProbesRefused:
        return False
    return True


def possible_cpus() -> int:
    """Number of values that a per-CPU map has for each key: one more than the highest CPU in a list like "0-3,6"."""
    with open("/sys/devices/system/cpu/possible") as file:
        return int(file.read().strip().replace(",", "-").split("-")[-1]) + 1
