"""Limits of a process, and how much of them it uses: of its cgroups, of its user, its own. Linux.

Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/, proc_pid_limits(5), setrlimit(2), Linux 6.18.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.numbers import number

if TYPE_CHECKING:
    from gdbext.engine.targets.host_files import HostFiles

Texts = Mapping[str, str]
"""Path → text of a file; ``groups CONTROLLER`` → the folders of its cgroups, a line each, the process's own first."""
GROUP_FILES = {
    "cpu": ("cpu.max", "cpu.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    "memory": (
        *("memory.current", "memory.high", "memory.max", "memory.events", "memory.pressure", "memory.swap.current"),
        *("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.failcnt"),
    ),
    "pids": ("pids.current", "pids.max", "pids.events"),
    "cpuset": ("cpuset.cpus.effective", "cpuset.effective_cpus"),
}
"""Controller → its files, in the unified hierarchy and in the older ones."""
_UNLIMITED = 1 << 60
"""Limits of memory from here on are none (PAGE_COUNTER_MAX, include/linux/page_counter.h)."""


class Quota(NamedTuple):
    """The CPU quota of a cgroup, and how often it was used up between the two readings (with one reading: since the
    group was made)."""

    group: str
    """The folder of the group, as it is mounted here."""
    processors: float
    period_ms: float
    periods: int
    throttled: int
    """The periods in which the group was throttled."""
    stood_ms: float
    """Milliseconds for which it was throttled, summed over CPUs."""
    seconds: float | None
    """Seconds between the readings; None if there is only one."""

    @property
    def share(self) -> float:
        """The share of periods in which the group was throttled."""
        return self.throttled / self.periods if self.periods else 0.0


class Allowance(NamedTuple):
    """Something that is counted: ``used`` of ``limit``."""

    used: int
    limit: int
    source: str
    """The file that has the numbers."""
    refused: int | None = None
    """Times that more was refused since the cgroup was created; None if that is not counted."""
    kinds: Mapping[str, int] | None = None
    """Of fds: how many of them are sockets, pipes, and so on."""

    @property
    def is_used_up(self) -> bool:
        return self.used >= self.limit


class MemoryUse(NamedTuple):
    """The memory of a cgroup, in bytes; None for no limit."""

    group: str
    used: int
    high: int | None
    """The use above which the group is slowed down (memory.high)."""
    limit: int | None
    slowed: int
    """Times that it was slowed down between the readings."""
    full: int
    """Times that it met the limit between the readings."""
    swap: int | None
    stalled: float | None
    """Percent of the last ten seconds in which all of its threads waited for memory (pressure stall information)."""


def folders_of(texts: Texts, controller: str) -> list[str]:
    """The folders of the process's cgroups, its own first."""
    return list(filter(None, texts.get(f"groups {controller}", "").split("\n")))


def values_of(texts: Texts, folder: str, controller: str) -> Iterator[str]:
    """The texts of a group's files, as far as they exist."""
    return (texts[path] for name in GROUP_FILES[controller] if (path := f"{folder}/{name}") in texts)


def _table(text: str) -> dict[str, int]:
    """Name → number, of lines of these two words."""
    words = (line.split() for line in text.splitlines())
    return {each[0]: value for each in words if len(each) == 2 and (value := number(each[1])) is not None}


def quota_in(first: Texts, later: Texts, seconds: float | None) -> Quota | None:
    """The quota that delays the process most, among its cgroup and those around it; if none does, the smallest."""
    quotas = [quota for folder in folders_of(first, "cpu") if (quota := _quota_of(folder, first, later, seconds))]
    return max(quotas, key=lambda quota: (quota.share, quota.throttled, -quota.processors), default=None)


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
    """The memory of the cgroup with the least room."""
    uses = [use for folder in folders_of(first, "memory") if (use := _memory_of(folder, first, later, seconds))]
    return min(uses, key=lambda use: min(use.high or _UNLIMITED, use.limit or _UNLIMITED) - use.used, default=None)


def _memory_of(folder: str, first: Texts, later: Texts, seconds: float | None) -> MemoryUse | None:
    def value(*names: str) -> int | None:
        """The first limited number in files of these names."""
        numbers = (number(first.get(f"{folder}/{name}", "").strip()) for name in names)
        return next((each for each in numbers if each is not None and each < _UNLIMITED), None)

    high, limit = value("memory.high"), value("memory.max", "memory.limit_in_bytes")
    used = value("memory.current", "memory.usage_in_bytes")
    if used is None or (high is None and limit is None):
        return None

    def count(texts: Texts, event: str) -> int:
        failed = texts.get(f"{folder}/memory.failcnt", "") if event == "max" else ""
        return _table(texts.get(f"{folder}/memory.events", "")).get(event) or number(failed.strip()) or 0

    slowed, full = (
        count(later, event) - count(first, event) if seconds is not None else count(first, event)
        for event in ("high", "max")
    )
    # avg10 of the line "full" (Documentation/accounting/psi.rst)
    pressure = re.search(r"^full \w+=([0-9.]+)", first.get(f"{folder}/memory.pressure", ""), re.M)
    stalled = None
    with suppress(ValueError):
        stalled = float(pressure[1]) if pressure else None
    return MemoryUse(folder, used, high, limit, slowed, full, value("memory.swap.current"), stalled)


def tasks_in(first: Texts) -> Allowance | None:
    """The pids controller of the cgroup with the least room."""
    found = []
    for folder in folders_of(first, "pids"):
        used, limit = (number(first.get(f"{folder}/pids.{name}", "").strip()) for name in ("current", "max"))
        if used is not None and limit is not None:
            refused = _table(first.get(f"{folder}/pids.events", "")).get("max")
            found.append(Allowance(used, limit, f"{folder}/pids.max", refused))
    return min(found, key=lambda each: each.limit - each.used, default=None)


def limits_in(text: str) -> Iterator[tuple[str, str]]:
    """(name, soft limit) of proc_pid_limits(5), whose columns have a fixed width."""
    for line in text.splitlines()[1:]:
        yield line[:26].strip(), line[26:47].strip()


def counted(used: str | None, limit: str | None, source: str) -> Allowance | None:
    """The two numbers; None if one of them is unknown, or there is no limit."""
    count, most = number(used or ""), number(limit or "")
    return None if count is None or most is None else Allowance(count, most, source)


def user_tasks(first: Texts, status: Mapping[str, str], limit: str | None, source: str) -> Allowance | None:
    """All tasks of the machine, as an upper bound of the user's; None if that leaves room, or the limit does not hold
    for the process (RLIMIT_NPROC, setrlimit(2): it has CAP_SYS_RESOURCE or CAP_SYS_ADMIN)."""
    capable = number(status.get("CapEff", ""), 16) or 0
    words = first.get("/proc/loadavg", "").split()
    tasks = words[3].partition("/")[2] if len(words) > 3 else ""
    found = counted(tasks, limit, source)
    return found if found and found.is_used_up and not capable & (1 << 24 | 1 << 21) else None


def descriptor_kinds(pid: int, files: HostFiles) -> dict[str, int]:
    """Kind (``socket``, ``pipe``, ``files``) → number of fds of the process; the most frequent first."""
    counts: dict[str, int] = {}
    for name in files.names(f"/proc/{pid}/fd")[:4096]:
        kind = _kind(files.link(f"/proc/{pid}/fd/{name}"))
        counts[kind] = counts.get(kind, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))


def _kind(link: str) -> str:
    if link.startswith("/"):
        return "/dev/shm" if link.startswith("/dev/shm/") else "terminals" if link.startswith("/dev/pts/") else "files"
    return link.removeprefix("anon_inode:").strip("[]") if link.startswith("anon_inode:") else link.partition(":")[0]
