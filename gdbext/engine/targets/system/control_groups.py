"""Limits of a process, and how much of them it uses: of its control groups, of its user, of its own. Linux.

Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/, proc_pid_limits(5), setrlimit(2), Linux 6.18.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.numbers import number

if TYPE_CHECKING:
    from gdbext.engine.targets.host_files import HostFiles

Texts = Mapping[str, str]
"""Path of a file → its text; ``groups CONTROLLER`` → the folders of its groups, the process's own one first."""
GROUP_FILES = {
    "cpu": ("cpu.max", "cpu.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    "memory": (
        "memory.current",
        "memory.high",
        "memory.max",
        "memory.events",
        "memory.pressure",
        "memory.swap.current",
        "memory.usage_in_bytes",
        "memory.limit_in_bytes",
        "memory.failcnt",
    ),
    "pids": ("pids.current", "pids.max", "pids.events"),
    "cpuset": ("cpuset.cpus.effective", "cpuset.effective_cpus"),
}
"""Controller → its files, of the unified hierarchy and of the older ones."""
_UNLIMITED = 1 << 60
"""Limits of memory from there on are none (PAGE_COUNTER_MAX, include/linux/page_counter.h)."""
_NO_LIMIT_CAPABILITIES = 1 << 24 | 1 << 21
"""CAP_SYS_RESOURCE and CAP_SYS_ADMIN: RLIMIT_NPROC does not hold for who has one (setrlimit(2))."""


class Quota(NamedTuple):
    """The processor time of a control group, and how often it was used up between the two readings (else, since the
    group was made)."""

    group: str
    """The folder of the group, as it is mounted here."""
    processors: float
    period_ms: float
    periods: int
    throttled: int
    """The periods in which the group had to stand still."""
    stood_ms: float
    """Milliseconds that it stood still, summed up over processors."""
    seconds: float | None
    """Seconds between the readings; None where there is but one."""

    @property
    def share(self) -> float:
        """The share of periods in which the group stood still."""
        return self.throttled / self.periods if self.periods else 0.0


class Allowance(NamedTuple):
    """Something that is counted: ``used`` of ``limit``."""

    used: int
    limit: int
    source: str
    """The file that says so."""
    refused: int | None = None
    """Times that more was refused since the group was made; None where nobody counts."""
    kinds: Mapping[str, int] | None = None
    """Descriptors: how many of them are sockets, pipes, and so on."""

    @property
    def is_used_up(self) -> bool:
        """No more can be had."""
        return self.used >= self.limit


class MemoryUse(NamedTuple):
    """The memory of a control group, in bytes; None for no limit."""

    group: str
    used: int
    high: int | None
    """The use from which on the group is slowed down (memory.high)."""
    limit: int | None
    slowed: int
    """Times that it was slowed down between the readings."""
    full: int
    """Times that it met the limit between the readings."""
    swap: int | None
    stalled: float | None
    """Percent of the last ten seconds in which all of its threads waited for memory (pressure stall information)."""


def folders_of(texts: Texts, controller: str) -> list[str]:
    """The folders of the process's groups, its own first."""
    return [each for each in texts.get(f"groups {controller}", "").split("\n") if each]


def values_of(texts: Texts, folder: str, controller: str) -> Iterator[str]:
    """The texts of a group's files, those that are there."""
    return (texts[path] for name in GROUP_FILES[controller] if (path := f"{folder}/{name}") in texts)


def _table(text: str) -> dict[str, int]:
    """Read lines of a name and a number."""
    words = (line.split() for line in text.splitlines())
    return {each[0]: value for each in words if len(each) == 2 and (value := number(each[1])) is not None}


def quota_in(first: Texts, later: Texts, seconds: float | None) -> Quota | None:
    """The quota that holds the process up most, of its group and of those around it; else the smallest."""
    found = [quota for folder in folders_of(first, "cpu") if (quota := _quota_of(folder, first, later, seconds))]
    return max(found, key=lambda each: (each.share, each.throttled, -each.processors), default=None)


def _quota_of(folder: str, first: Texts, later: Texts, seconds: float | None) -> Quota | None:
    words = first.get(f"{folder}/cpu.max", "").split()
    if len(words) != 2:
        words = [first.get(f"{folder}/cpu.cfs_{name}_us", "").strip() for name in ("quota", "period")]
    quota, period = number(words[0]), number(words[1])  # "max" and -1 are no numbers here
    if not quota or not period:
        return None
    path = f"{folder}/cpu.stat"
    before = _table(first.get(path, "")) if path in later else {}
    now = _table(later.get(path) or first.get(path, ""))
    counts = {name: value - before.get(name, 0) for name, value in now.items()}
    stood = counts["throttled_usec"] / 1e3 if "throttled_usec" in counts else counts.get("throttled_time", 0) / 1e6
    return Quota(
        folder,
        round(quota / period, 3),
        period / 1e3,
        counts.get("nr_periods", 0),
        counts.get("nr_throttled", 0),
        round(stood, 1),
        seconds if path in later else None,
    )


def memory_in(first: Texts, later: Texts, seconds: float | None) -> MemoryUse | None:
    """The memory of the group with the least room."""
    found = [use for folder in folders_of(first, "memory") if (use := _memory_of(folder, first, later, seconds))]
    return min(found, key=_room, default=None)


def _room(use: MemoryUse) -> int:
    return min(use.high or _UNLIMITED, use.limit or _UNLIMITED) - use.used


def _memory_of(folder: str, first: Texts, later: Texts, seconds: float | None) -> MemoryUse | None:
    def value(*names: str) -> int | None:
        found = (number(first.get(f"{folder}/{name}", "").strip()) for name in names)
        return next((each for each in found if each is not None and each < _UNLIMITED), None)

    high, limit = value("memory.high"), value("memory.max", "memory.limit_in_bytes")
    used = value("memory.current", "memory.usage_in_bytes")
    if used is None or (high is None and limit is None):
        return None

    def count(texts: Texts, name: str) -> int:
        found = _table(texts.get(f"{folder}/memory.events", "")).get(name)
        failed = texts.get(f"{folder}/memory.failcnt", "") if name == "max" else ""
        return found or number(failed.strip()) or 0

    def since(name: str) -> int:
        return count(later, name) - count(first, name) if seconds is not None else count(first, name)

    stalled = _pressure(first.get(f"{folder}/memory.pressure", ""))
    return MemoryUse(folder, used, high, limit, since("high"), since("max"), value("memory.swap.current"), stalled)


def _pressure(text: str) -> float | None:
    """avg10 of the line "full" (Documentation/accounting/psi.rst)."""
    for line in text.splitlines():
        if line.startswith("full "):
            try:
                return float(line.split()[1].partition("=")[2])
            except (IndexError, ValueError):
                return None
    return None


def tasks_in(first: Texts) -> Allowance | None:
    """The pids controller of the group with the least room."""
    found = []
    for folder in folders_of(first, "pids"):
        used, limit = (number(first.get(f"{folder}/pids.{name}", "").strip()) for name in ("current", "max"))
        if used is not None and limit is not None:
            refused = _table(first.get(f"{folder}/pids.events", "")).get("max")
            found.append(Allowance(used, limit, f"{folder}/pids.max", refused))
    return min(found, key=lambda each: each.limit - each.used, default=None)


def limits_in(text: str) -> Iterator[tuple[str, str]]:
    """Name → soft limit (proc_pid_limits(5)): columns of a fixed width."""
    for line in text.splitlines()[1:]:
        yield line[:26].strip(), line[26:47].strip()


def counted(used: str | None, limit: str | None, source: str) -> Allowance | None:
    """The two numbers; None where one of them is not known, or there is no limit."""
    count, most = number(used or ""), number(limit or "")
    return None if count is None or most is None else Allowance(count, most, source)


def user_tasks(first: Texts, status: Mapping[str, str], limit: str | None, source: str) -> Allowance | None:
    """All tasks of the machine, as an upper bound of those of the user; None where that leaves room, or the limit does
    not hold for the process."""
    capable = number(status.get("CapEff", ""), 16) or 0
    words = first.get("/proc/loadavg", "").split()
    tasks = words[3].partition("/")[2] if len(words) > 3 else ""
    found = counted(tasks, limit, source)
    if not found or not found.is_used_up or capable & _NO_LIMIT_CAPABILITIES:
        return None
    return found


_MAX_DESCRIPTORS = 4096


def descriptor_kinds(pid: int, files: HostFiles) -> dict[str, int]:
    """Count the descriptors of each kind that the process has: ``socket``, ``pipe``, ``files``; the most first."""
    found: dict[str, int] = {}
    for name in files.names(f"/proc/{pid}/fd")[:_MAX_DESCRIPTORS]:
        kind = _kind(files.link(f"/proc/{pid}/fd/{name}"))
        found[kind] = found.get(kind, 0) + 1
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def _kind(link: str) -> str:
    if link.startswith("/"):
        return "/dev/shm" if link.startswith("/dev/shm/") else "terminals" if link.startswith("/dev/pts/") else "files"
    return link.removeprefix("anon_inode:").strip("[]") if link.startswith("anon_inode:") else link.partition(":")[0]
