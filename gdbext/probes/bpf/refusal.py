"""Why the kernel refuses kernel probes here, and what would permit them."""

from __future__ import annotations

import contextlib
import errno
import os
import re

from gdbext.errors import ProbesRefused
from gdbext.model.record import Record

_CAPABILITIES = {39: "CAP_BPF", 38: "CAP_PERFMON"}
"""include/uapi/linux/capability.h; CAP_SYS_ADMIN stands for both."""
_SYS_ADMIN = 21
_FIRST, _FIRST_WITH_MANY = (5, 15), (6, 6)
"""Linux with cookies of perf events (bpf_get_attach_cookie), and with uprobe_multi (BPF_TRACE_UPROBE_MULTI)."""
_BREAKPOINTS = "trace by breakpoints: dispatch-trace OP --engine breakpoints"
_FILTERED = "2"
"""SECCOMP_MODE_FILTER (proc_pid_status(5))."""


class Circumstances(Record):
    """What the kernel says of us: its release, our effective capabilities as bits, whether a seccomp filter is over us,
    whether we are root in a user namespace only."""

    release: str
    capabilities: int
    is_filtered: bool
    is_namespaced: bool

    @property
    def missing(self) -> list[str]:
        """Capabilities that we lack."""
        if self.capabilities >> _SYS_ADMIN & 1:
            return []
        return [name for number, name in _CAPABILITIES.items() if not self.capabilities >> number & 1]

    @property
    def is_too_old(self) -> bool:
        """The kernel has not what our probes need."""
        return self._version() < _FIRST

    @property
    def lacks_many(self) -> bool:
        """The kernel has no probes on many places at once."""
        return self._version() < _FIRST_WITH_MANY

    def _version(self) -> tuple[int, int]:
        found = re.match(r"(\d+)\.(\d+)", self.release)
        return (int(found[1]), int(found[2])) if found is not None else _FIRST_WITH_MANY


def circumstances() -> Circumstances:
    """Ours."""
    status = dict(line.partition(":")[::2] for line in _text("/proc/self/status").splitlines())
    whole = _text("/proc/self/uid_map").split()[:2] in ([], ["0", "0"])
    capabilities = int(status.get("CapEff", "0").strip() or "0", 16)
    return Circumstances(os.uname().release, capabilities, status.get("Seccomp", "").strip() == _FILTERED, not whole)


def _text(path: str) -> str:
    with contextlib.suppress(OSError), open(path) as file:
        return file.read()
    return ""


def refused(what: str, error: OSError, here: Circumstances | None = None) -> ProbesRefused:
    """The error that says what is missing; ``here``: other circumstances than ours."""
    here = circumstances() if here is None else here
    why, help_ = _reason(error.errno or 0, here)
    return ProbesRefused(f"{what}: {error.strerror}", why=why, help=help_)


def _reason(code: int, here: Circumstances) -> tuple[str, str]:
    """Why, and what to do."""
    if code in (errno.EPERM, errno.EACCES):
        return _not_permitted(here)
    if code == errno.ENOSYS:
        return "this kernel was built without BPF (CONFIG_BPF_SYSCALL)", _BREAKPOINTS
    if here.is_too_old:
        return f"Linux {here.release} has no probes that know their place: 5.15 is the first", _BREAKPOINTS
    if code in (errno.EIO, errno.EOPNOTSUPP, errno.ENOENT):
        return "the file was deleted or replaced, or is on a file system that the kernel does not probe", _BREAKPOINTS
    return f"Linux {here.release} does not take it: it may have been built without uprobes", _BREAKPOINTS


def _not_permitted(here: Circumstances) -> tuple[str, str]:
    if here.missing:
        names = " and ".join(here.missing)
        options = " ".join(f"--cap-add={name[4:]}" for name in here.missing)
        return (
            f"kernel probes need {names}, or root; this process lacks that",
            f"run it as root on the host (sudo), or docker run {options}; or {_BREAKPOINTS}",
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
