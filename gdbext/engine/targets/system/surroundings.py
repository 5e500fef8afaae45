"""Surroundings: what cgroups, limits and the scheduler allow a process, and how much of that it uses. Linux.

Files of /proc and /sys are read into texts by path; twice, with a pause, if two moments show more than one (a quota
that is used up, threads that wait for a CPU). A recording keeps the texts, and everything follows from them. Sources:
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/, sched-stats.rst, proc_pid_limits(5), Linux 6.18.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.numbers import number
from gdbext.engine.targets.host_files import HostFiles
from gdbext.engine.targets.live.proc_checks import living_threads
from gdbext.engine.targets.system.linux import split_stat, stat_fields
from gdbext.engine.targets.system.machine import Machine
from gdbext.engine.targets.system.peer import ChildProcess
from gdbext.engine.targets.system.proc_files import file_text, link_target, status_fields, status_values

if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Readings, Target

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
_STORED_AS = "machine"
"""The name of the texts in a recording."""
_OWN_STAT = "/proc/self/stat"
_COUNTERS = ("cpu.stat", "memory.events", "memory.failcnt", "/schedstat", "/stat", "/loadavg")
"""Ends of the paths that are read a second time."""
_NAMESPACE = "ns/cgroup"
_ONLINE = "/sys/devices/system/cpu/online"
_MAX_THREADS = 512
_MAX_TEXT = 1 << 16
"""Bytes of a file that are read."""
_PAUSE = 0.25
"""Seconds between two readings: two periods of an ordinary quota."""
_MAJOR_FAULTS, _USER_TIME, _SYSTEM_TIME, _NICE, _POLICY = 12 - 3, 14 - 3, 15 - 3, 19 - 3, 41 - 3
"""majflt, utime, stime, nice and policy of proc_pid_stat(5), counted from the state, its third field."""


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


class Turns(NamedTuple):
    """A thread that was ready to run between the readings; numbers are None if there is only one reading."""

    tid: int
    state: str
    running_ms: float | None
    delayed_ms: float | None
    """Milliseconds in which it was ready, and no CPU was free for it."""
    major_faults: int | None
    priority: str
    """Why other threads come before it: ``SCHED_IDLE``, ``nice 19``; "" for an ordinary priority."""


class Surroundings(NamedTuple):
    """Everything that was read; unknown values are None or empty."""

    online: int
    """Number of CPUs that this machine has online."""
    allowed: tuple[int, ...]
    """CPUs on which the main thread may run."""
    cpuset: int | None
    """Number of CPUs of the cgroup, None without one."""
    pinned_parent: str
    """The parent process, if it may run on the same CPUs only; else ""."""
    quota: Quota | None
    memory: MemoryUse | None
    tasks: Allowance | None
    """Processes and threads of the cgroup (pids.max)."""
    user_tasks: Allowance | None
    """Processes and threads of the process's user (RLIMIT_NPROC)."""
    descriptors: Allowance | None
    address_space: Allowance | None
    threads: tuple[Turns, ...]
    idle: float | None
    """Share of time in which the CPUs on which it may not run were idle."""
    seconds: float | None
    """Seconds between the readings; None if there is only one."""
    files: tuple[str, ...]
    """The lines that all this follows from, each after its file."""
    unread: tuple[str, ...]
    ready: float | None = None
    """Threads of the whole machine that ran or were ready to, except ours: the mean of both readings."""

    @property
    def ordinary_share(self) -> float | None:
        """The share of time in which a thread of ordinary priority can expect to run on this machine."""
        return None if self.ready is None else min(1.0, self.online / max(1.0, self.ready))


def surroundings(target: Target, tids: Sequence[int], machine: Machine) -> Surroundings | None:
    """The surroundings of a process with its threads ``tids``; None for a recording without them. Pauses for a quarter
    of a second if the first reading says that the process may be delayed."""
    pid, files = target.pid, target.origin.files
    if stored := files.stored_text(_STORED_AS):
        return surroundings_from(pid, *_stored_readings(stored))
    if not files.are_here:
        return None
    texts = target.origin.readings or readings(pid, tids, machine)
    files.store_text(_STORED_AS, lambda: json.dumps(texts))
    return surroundings_from(pid, *texts)


def readings_before_stop(pid: int) -> Readings:
    """Read the surroundings of a process that is about to be stopped."""
    return readings(pid, sorted(living_threads(pid)), Machine(pid, HostFiles(), ChildProcess))


def _stored_readings(stored: str) -> Readings:
    """The readings in the JSON text of a recording; empty ones if it is damaged."""
    try:
        first, later, seconds = json.loads(stored)
        texts = [{str(path): str(text) for path, text in reading.items()} for reading in (first, later)]
        return texts[0], texts[1], float(seconds) if seconds is not None else None
    except (ValueError, TypeError, AttributeError):
        return {}, {}, None


def readings(pid: int, tids: Sequence[int], machine: Machine) -> Readings:
    """(texts by path, those of a second reading, seconds between): the second only if ``pause_for`` wants one."""
    first = dict(_first_texts(pid, tids, machine))
    pause = pause_for(pid, first)
    if not pause:
        return first, {}, None
    paths = dict.fromkeys(path for path in first if path.endswith(_COUNTERS))
    # and threads that slept just now: a team takes turns
    paths.update(dict.fromkeys(f"/proc/{pid}/task/{tid}/schedstat" for tid in tids[:_MAX_THREADS]))
    first.update(_read_all(paths))  # the reading took some time itself
    began = time.monotonic()
    time.sleep(pause)
    return first, dict(_read_all(paths)), round(time.monotonic() - began, 4)


def _first_texts(pid: int, tids: Sequence[int], machine: Machine) -> Iterator[tuple[str, str]]:
    """(path, or another name of a fact; its text) of everything that the first reading reads."""
    folder = f"/proc/{pid}"
    yield from _read_all([f"{folder}/status", f"{folder}/limits", _ONLINE, "/proc/stat", "/proc/loadavg", _OWN_STAT])
    parent = status_fields(f"{folder}/status").get("PPid", "0")
    status = status_fields(f"/proc/{parent}/status") if parent not in ("", "0") else {}
    if status:
        yield "parent", f"{parent} {status.get('Name', '?')}\t{status.get('Cpus_allowed_list', '')}"
    namespace = link_target(f"{folder}/{_NAMESPACE}")
    if namespace and link_target(f"/proc/self/{_NAMESPACE}") not in ("", namespace):
        yield f"{folder}/{_NAMESPACE}", namespace
    with suppress(OSError):  # the size of the folder is the number of fds since Linux 6.2
        yield f"{folder}/fd", str(os.stat(f"{folder}/fd").st_size or len(os.listdir(f"{folder}/fd")))  # noqa: PTH116, PTH208
    for tid in tids[:_MAX_THREADS]:
        stat = file_text(f"{folder}/task/{tid}/stat", _MAX_TEXT)
        if _state_letter(stat) in ("R", "D"):
            yield f"{folder}/task/{tid}/stat", stat
            yield from _read_all([f"{folder}/task/{tid}/schedstat"])
    for controller, names in GROUP_FILES.items():
        groups = machine.group_folders(controller)
        yield f"groups {controller}", "\n".join(groups)
        yield from _read_all([f"{group}/{name}" for group in groups for name in names])


def _read_all(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    """(path, text) of the files that can be read and are not empty."""
    return ((path, text) for path in paths if (text := file_text(path, _MAX_TEXT)))


def pause_for(pid: int, texts: Texts) -> float:
    """Seconds after which a second reading shows more; 0 if it would not, or the process is stopped. ``texts``: the
    first reading."""
    once = surroundings_from(pid, texts, {}, None)
    ready = [thread for thread in once.threads if thread.state == "R"]
    if not once.threads or any(_state_letter(texts[path]) in ("t", "T") for path in texts if path.endswith("/stat")):
        return 0.0
    if once.quota and once.quota.throttled and ready:
        return max(_PAUSE, min(3.2 * once.quota.period_ms / 1e3, 0.6))

    def is_delayed(thread: Turns) -> bool:
        """It has waited for a CPU most of its time, or comes after other threads."""
        ran, waited = _run_and_wait(texts.get(f"/proc/{pid}/task/{thread.tid}/schedstat", "")) or (1, 0)
        return bool(thread.priority) or waited >= 0.75 * (ran + waited) > 0

    memory, cpus = once.memory, len(once.allowed)
    is_short_of_memory = memory is not None and (memory.slowed or memory.full or (memory.stalled or 0) >= 5)
    is_short_of_cpus = (ready and cpus < once.online) or len(ready) > max(1, cpus)
    return _PAUSE if is_short_of_memory or is_short_of_cpus or any(map(is_delayed, ready)) else 0.0


def surroundings_from(pid: int, first: Texts, later: Texts, seconds: float | None) -> Surroundings:
    """What the texts of one reading, or of two that are ``seconds`` apart, say about the process; without a second one
    ``later`` is empty."""
    folder = f"/proc/{pid}"
    status = status_values(first.get(f"{folder}/status", ""))
    allowed = numbers_of(status.get("Cpus_allowed_list", ""))
    online = numbers_of(first.get(_ONLINE, ""))
    set_sizes = [
        len(numbers_of(first.get(f"{group}/{name}", "")))
        for group in _group_folders(first, "cpuset")
        for name in GROUP_FILES["cpuset"]
    ]
    # proc_pid_limits(5): the name and the soft limit are columns of a fixed width
    rows = first.get(f"{folder}/limits", "").splitlines()[1:]
    limits = {row[:26].strip(): row[26:47].strip() for row in rows}

    def allowance(used: str, name: str, file: str = "") -> Allowance | None:
        """``used`` of the limit ``name``; None if one is unknown, or there is no limit."""
        count, most = number(used), number(limits.get(name, ""))
        return None if count is None or most is None else Allowance(count, most, f"{folder}/limits{file}")

    size = number(status.get("VmSize", "").partition(" ")[0])
    # All tasks of the machine: an upper bound of the user's. With CAP_SYS_RESOURCE or CAP_SYS_ADMIN the limit does not
    # hold (RLIMIT_NPROC, setrlimit(2)).
    tasks = "".join(first.get("/proc/loadavg", "").split()[3:4]).partition("/")[2]
    user_tasks = allowance(tasks, "Max processes", ": Max processes")
    has_capability = (number(status.get("CapEff", ""), 16) or 0) & (1 << 24 | 1 << 21)
    parent, _, cpus_of_parent = first.get("parent", "").partition("\t")
    unread = [] if f"{folder}/status" in first else [f"{folder}/status cannot be read"]
    unread += [
        f"no cgroup of {controller} is mounted here, or it is outside of our container"
        for controller in GROUP_FILES
        if not first.get(f"groups {controller}")
    ]
    result = Surroundings(
        online=len(online),
        allowed=tuple(allowed),
        cpuset=min(filter(None, set_sizes), default=None),
        pinned_parent=parent if cpus_of_parent == status.get("Cpus_allowed_list") else "",
        quota=_tightest_quota(first, later, seconds),
        memory=_tightest_memory(first, later),
        tasks=_tightest_tasks(first),
        user_tasks=user_tasks if user_tasks and user_tasks.is_used_up and not has_capability else None,
        descriptors=allowance(first.get(f"{folder}/fd", ""), "Max open files", ": Max open files"),
        address_space=allowance(str(size * 1024) if size else "", "Max address space"),
        threads=tuple(_ready_turns(folder, first, later, seconds)),
        idle=_idle_share(first, later, set(online) - set(allowed)),
        seconds=seconds,
        files=(),
        unread=tuple(unread),
        ready=_ready_threads(first, later),
    )
    return result._replace(files=tuple(_evidence_lines(result, folder, status, f"{folder}/{_NAMESPACE}" in first)))


def _evidence_lines(read: Surroundings, folder: str, status: Mapping[str, str], is_in_container: bool) -> Iterator[str]:
    """``Surroundings.files``; ``status``: the values of /proc/PID/status."""
    if is_in_container:
        yield (
            f"{folder}/ns/cgroup: a container's, not ours: cgroups and limits are shown as on the host; inside the "
            "container its own cgroup is /"
        )
    if read.allowed:
        yield f"{folder}/status: Cpus_allowed_list {status.get('Cpus_allowed_list', '')}; {read.online} are online"
    if quota := read.quota:
        when = "between two readings" if quota.seconds is not None else "since the cgroup was created"
        yield (
            f"{quota.group}: {quota.processors:g} CPUs for each {quota.period_ms:g} ms; "
            f"{quota.throttled} of {quota.periods} periods throttled {when}"
        )
    if use := read.memory:
        yield f"{use.group}: {use.used} bytes used, memory.high {use.high}, limit {use.limit}"
    for allowance in (read.tasks, read.user_tasks, read.descriptors, read.address_space):
        if allowance:
            yield f"{allowance.source}: {allowance.used} of {allowance.limit}"


def _state_letter(stat: str) -> str:
    """The state letter in the text of a stat file (proc_pid_stat(5))."""
    return split_stat(stat)[1][:1]


def numbers_of(text: str) -> list[int]:
    """``0-3,8`` as numbers (cpuset(7), "List format")."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        first, last = number(low), number(high or low)
        if first is not None and last is not None and last - first < 1 << 16:
            numbers += range(first, last + 1)
    return numbers


def _ready_turns(folder: str, first: Texts, later: Texts, seconds: float | None) -> Iterator[Turns]:
    """The threads that did not sleep all the time between the readings; ``folder`` is /proc/PID. A nice value that we
    have, too, is that of a whole session, and puts no thread behind its neighbors."""
    usual = max(_stat_number(first.get(_OWN_STAT, "") or ") S", _NICE) or 0, 0)
    for path in first:
        words = path.split("/")
        tid = number(words[4]) if path.startswith(f"{folder}/task/") and path.endswith("/schedstat") else None
        if tid is None:
            continue
        schedstats = [_run_and_wait(texts.get(path, "")) for texts in (first, later)]
        stats = [texts.get(f"{folder}/task/{tid}/stat", "") for texts in (first, later)]
        state = _state_letter(stats[0] or ") S")
        ran_ms = waited_ms = faults = None
        if seconds is not None and schedstats[0] and schedstats[1]:
            ran_ms, waited_ms = ((after - before) / 1e6 for before, after in zip(*schedstats))
            # The scheduler adds a thread's waiting time when the thread gets a CPU: one that was ready both times and
            # did not run waited all the time. On a CPU without ticks (nohz_full) utime and stime still show that it
            # runs.
            used = [[_stat_number(stat, index) for index in (_USER_TIME, _SYSTEM_TIME)] for stat in stats]
            if not ran_ms + waited_ms and state == "R" and _state_letter(stats[1]) == "R" and used[0] == used[1]:
                waited_ms = seconds * 1e3
            counts = [_stat_number(stat, _MAJOR_FAULTS) for stat in stats]
            faults = counts[1] - counts[0] if counts[0] is not None and counts[1] is not None else None
            ran_ms, waited_ms = round(ran_ms, 2), round(waited_ms, 2)
        if state == "S" and not ran_ms and not waited_ms:
            continue  # it slept all the time
        # policies of threads that come after the others (sched(7), include/uapi/linux/sched.h)
        priority = {3: "SCHED_BATCH", 5: "SCHED_IDLE"}.get(_stat_number(stats[0], _POLICY) or 0, "")
        nice = _stat_number(stats[0], _NICE) or 0
        yield Turns(tid, state, ran_ms, waited_ms, faults, priority or (f"nice {nice}" if nice > usual else ""))


def _run_and_wait(schedstat: str) -> tuple[int, int] | None:
    """Nanoseconds that a thread ran, and that it waited for a CPU; None if unknown."""
    times = [number(word) for word in schedstat.split()[:2]]
    return (times[0], times[1]) if len(times) == 2 and times[0] is not None and times[1] is not None else None


def _stat_number(stat: str, index: int) -> int | None:
    """One number of the text of /proc/PID/stat, by its index from the state on; None if it is missing."""
    fields = stat_fields(stat)
    return number(fields[index]) if len(fields) > index else None


def _ready_threads(first: Texts, later: Texts) -> float | None:
    """Ready threads of the whole machine, without the reader itself: the mean of both readings; None if unknown. They
    are the fourth word of /proc/loadavg, ``2/845`` (proc_loadavg(5))."""
    words = [word for texts in (first, later) for word in texts.get("/proc/loadavg", "").split()[3:4]]
    counts = [count for word in words if (count := number(word.partition("/")[0])) is not None]
    return sum(counts) / len(counts) - 1 if counts else None


def _idle_share(first: Texts, later: Texts, cpus: set[int]) -> float | None:
    """The share of time between the readings in which these CPUs were idle; None if unknown."""

    def ticks(texts: Texts) -> tuple[int, int]:
        """(idle, total) clock ticks of the CPUs: the fourth and fifth number of a line of /proc/stat are idle and
        iowait (proc_stat(5))."""
        idle = total = 0
        for line in texts.get("/proc/stat", "").splitlines():
            name, *rest = line.split() or [""]
            if name.startswith("cpu") and number(name[3:]) in cpus:
                times = [number(word) or 0 for word in rest[:8]]
                idle, total = idle + sum(times[3:5]), total + sum(times)
        return idle, total

    (idle, total), (later_idle, later_total) = ticks(first), ticks(later)
    return round((later_idle - idle) / (later_total - total), 3) if total and later_total > total else None


def _group_folders(texts: Texts, controller: str) -> list[str]:
    """The folders of the process's cgroups, its own first."""
    return list(filter(None, texts.get(f"groups {controller}", "").split("\n")))


def _table(text: str) -> dict[str, int]:
    """Name → number, of the lines ``name number``."""
    rows = (line.split() for line in text.splitlines())
    return {row[0]: value for row in rows if len(row) == 2 and (value := number(row[1])) is not None}


def _tightest_quota(first: Texts, later: Texts, seconds: float | None) -> Quota | None:
    """The quota that delays the process most, among its cgroup and those around it; if none does, the smallest."""

    def quota_of(folder: str) -> Quota | None:
        """The quota of the cgroup with that folder; None if it has none."""
        words = first.get(f"{folder}/cpu.max", "").split()
        if len(words) != 2:
            words = [first.get(f"{folder}/cpu.cfs_{name}_us", "").strip() for name in ("quota", "period")]
        quota_us, period_us = number(words[0]), number(words[1])  # "max" and -1 are no numbers here
        if not quota_us or not period_us:
            return None
        path = f"{folder}/cpu.stat"
        before = _table(first.get(path, "")) if path in later else {}
        now = _table(later.get(path) or first.get(path, ""))
        counts = {name: value - before.get(name, 0) for name, value in now.items()}
        stood = counts["throttled_usec"] / 1e3 if "throttled_usec" in counts else counts.get("throttled_time", 0) / 1e6
        return Quota(
            folder,
            round(quota_us / period_us, 3),
            period_us / 1e3,
            counts.get("nr_periods", 0),
            counts.get("nr_throttled", 0),
            round(stood, 1),
            seconds if path in later else None,
        )

    quotas = filter(None, map(quota_of, _group_folders(first, "cpu")))
    return max(quotas, key=lambda quota: (quota.share, quota.throttled, -quota.processors), default=None)


def _tightest_memory(first: Texts, later: Texts) -> MemoryUse | None:
    """The memory of the cgroup with the least room."""
    uses = filter(None, (_memory_of(folder, first, later) for folder in _group_folders(first, "memory")))
    return min(uses, key=lambda use: min(use.high or _UNLIMITED, use.limit or _UNLIMITED) - use.used, default=None)


def _memory_of(folder: str, first: Texts, later: Texts) -> MemoryUse | None:
    """The memory of the cgroup with that folder; None if it has no limit, or its use is unknown."""

    def value(*names: str) -> int | None:
        """The number in the first of these files that has one and does not mean "unlimited"; None for none."""
        numbers = (number(first.get(f"{folder}/{name}", "").strip()) for name in names)
        return next((limit for limit in numbers if limit is not None and limit < _UNLIMITED), None)

    def count(event: str) -> int:
        """How often the group was slowed down ("high") or met its limit ("max"): between the readings if there are
        two."""
        totals = []
        for texts in (first, later):
            failed = number(texts.get(f"{folder}/memory.failcnt", "").strip()) if event == "max" else 0
            totals.append(_table(texts.get(f"{folder}/memory.events", "")).get(event) or failed or 0)
        return totals[1] - totals[0] if later else totals[0]

    high, limit = value("memory.high"), value("memory.max", "memory.limit_in_bytes")
    used = value("memory.current", "memory.usage_in_bytes")
    if used is None or (high is None and limit is None):
        return None
    # avg10 of the line "full" (Documentation/accounting/psi.rst)
    pressure = re.search(r"^full \w+=(\d+(?:\.\d*)?)", first.get(f"{folder}/memory.pressure", ""), re.M)
    stalled = float(pressure[1]) if pressure else None
    return MemoryUse(folder, used, high, limit, count("high"), count("max"), value("memory.swap.current"), stalled)


def _tightest_tasks(first: Texts) -> Allowance | None:
    """The pids controller of the cgroup with the least room."""
    allowances = []
    for folder in _group_folders(first, "pids"):
        used, limit = (number(first.get(f"{folder}/pids.{name}", "").strip()) for name in ("current", "max"))
        if used is not None and limit is not None:
            refused = _table(first.get(f"{folder}/pids.events", "")).get("max")
            allowances.append(Allowance(used, limit, f"{folder}/pids.max", refused))
    return min(allowances, key=lambda allowance: allowance.limit - allowance.used, default=None)


def descriptor_kinds(pid: int, files: HostFiles) -> dict[str, int]:
    """Kind (``socket``, ``pipe``, ``files``) → number of fds of the process; the most frequent first."""
    kinds = (("/dev/shm/", "/dev/shm"), ("/dev/pts/", "terminals"), ("/", "files"))
    counts: dict[str, int] = {}
    for name in files.names(f"/proc/{pid}/fd")[:4096]:
        link = files.link(f"/proc/{pid}/fd/{name}")
        kind = next((kind for beginning, kind in kinds if link.startswith(beginning)), "")
        # pipe:[77], anon_inode:[eventfd], anon_inode:inotify
        kind = kind or link.removeprefix("anon_inode:").strip("[]").partition(":")[0]
        counts[kind] = counts.get(kind, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
