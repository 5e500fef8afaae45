"""Surroundings: what cgroups, limits and the scheduler allow a process, and how much of that it uses. Linux.

Files of /proc and /sys are read into texts by path; twice, with a pause, if two moments show more than one (a quota
that is used up, threads that wait for a CPU). A recording keeps the texts, and everything follows from them. Sources:
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/, sched-stats.rst, proc_pid_limits(5), Linux 6.18.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.numbers import number
from gdbext.engine.targets.host_files import HostFiles, link_of, text_of
from gdbext.engine.targets.live.proc_checks import living_threads
from gdbext.engine.targets.system import control_groups as groups
from gdbext.engine.targets.system.control_groups import Texts
from gdbext.engine.targets.system.linux import split_stat, stat_fields, status_values
from gdbext.engine.targets.system.machine import Machine
from gdbext.engine.targets.system.peer import ChildProcess

if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Readings, Target

_KEPT = "machine"
"""The name of the texts in a recording."""
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


class Turns(NamedTuple):
    """A thread that runs or wants to, between the readings; None if there is only one reading."""

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
    quota: groups.Quota | None
    memory: groups.MemoryUse | None
    tasks: groups.Allowance | None
    """Processes and threads of the cgroup (pids.max)."""
    user_tasks: groups.Allowance | None
    """Processes and threads of the process's user (RLIMIT_NPROC)."""
    descriptors: groups.Allowance | None
    address_space: groups.Allowance | None
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
    kept = files.kept(_KEPT)
    if kept:
        return understood(pid, *_checked(kept))
    if not files.are_here:
        return None
    found = target.origin.readings or readings(pid, tids, machine)
    files.keep(_KEPT, lambda: json.dumps(found))
    return understood(pid, *found)


def readings_ahead(pid: int) -> Readings:
    """Read the surroundings of a process that is about to be stopped."""
    return readings(pid, sorted(living_threads(pid)), Machine(pid, HostFiles(), ChildProcess))


def _checked(kept: str) -> Readings:
    """The texts of a recording; empty ones of a damaged recording."""
    try:
        first, later, seconds = json.loads(kept)
        texts = [{str(path): str(text) for path, text in each.items()} for each in (first, later)]
        return texts[0], texts[1], float(seconds) if seconds is not None else None
    except (ValueError, TypeError, AttributeError):
        return {}, {}, None


def readings(pid: int, tids: Sequence[int], machine: Machine) -> Readings:
    """Read once, or twice with a pause."""
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
    folder = f"/proc/{pid}"
    yield from _read_all([f"{folder}/status", f"{folder}/limits", _ONLINE, "/proc/stat", "/proc/loadavg"])
    parent = status_values(text_of(f"{folder}/status", _MAX_TEXT)).get("PPid", "0")
    status = status_values(text_of(f"/proc/{parent}/status", _MAX_TEXT)) if parent not in ("", "0") else {}
    if status:
        yield "parent", f"{parent} {status.get('Name', '?')}\t{status.get('Cpus_allowed_list', '')}"
    ours, theirs = link_of(f"/proc/self/{_NAMESPACE}"), link_of(f"{folder}/{_NAMESPACE}")
    if ours and theirs and ours != theirs:
        yield f"{folder}/{_NAMESPACE}", theirs
    with suppress(OSError):  # the size of the folder is the number of fds since Linux 6.2
        yield f"{folder}/fd", str(os.stat(f"{folder}/fd").st_size or len(os.listdir(f"{folder}/fd")))  # noqa: PTH116, PTH208
    for tid in tids[:_MAX_THREADS]:
        stat = text_of(f"{folder}/task/{tid}/stat", _MAX_TEXT)
        if _letter(stat) in ("R", "D"):
            yield f"{folder}/task/{tid}/stat", stat
            yield from _read_all([f"{folder}/task/{tid}/schedstat"])
    for controller, names in groups.GROUP_FILES.items():
        folders = machine.group_folders(controller)
        yield f"groups {controller}", "\n".join(folders)
        yield from _read_all([f"{each}/{name}" for each in folders for name in names])


def _read_all(paths: Iterable[str]) -> Iterator[tuple[str, str]]:
    return ((path, text) for path in paths if (text := text_of(path, _MAX_TEXT)))


def pause_for(pid: int, texts: Texts) -> float:
    """Seconds after which a second reading shows more; 0 if it would not, or the process is stopped."""
    once = understood(pid, texts, {}, None)
    ready = [thread for thread in once.threads if thread.state == "R"]
    if not once.threads or any(_letter(texts[path]) in ("t", "T") for path in texts if path.endswith("/stat")):
        return 0.0
    pause = 0.0
    if once.quota and once.quota.throttled and ready:
        pause = max(_PAUSE, min(3.2 * once.quota.period_ms / 1e3, 0.6))
    for thread in ready:
        times = _run_and_wait(texts.get(f"/proc/{pid}/task/{thread.tid}/schedstat", ""))
        if thread.priority or (times is not None and times[1] >= 0.75 * sum(times) > 0):
            pause = max(pause, _PAUSE)
    memory = once.memory
    is_short = memory is not None and (memory.slowed or memory.full or (memory.stalled or 0) >= 5)
    if is_short or (ready and len(once.allowed) < once.online) or len(ready) > max(1, len(once.allowed)):
        pause = max(pause, _PAUSE)
    return pause


def understood(pid: int, first: Texts, later: Texts, seconds: float | None) -> Surroundings:
    """What the texts of the readings say about the process; ``later`` is empty if there is only one."""
    folder = f"/proc/{pid}"
    status = status_values(first.get(f"{folder}/status", ""))
    allowed = numbers_of(status.get("Cpus_allowed_list", ""))
    online = numbers_of(first.get(_ONLINE, ""))
    sets = [
        numbers_of(text)
        for group in groups.folders_of(first, "cpuset")
        for text in groups.values_of(first, group, "cpuset")
    ]
    limits = dict(groups.limits_in(first.get(f"{folder}/limits", "")))
    descriptors = groups.counted(
        first.get(f"{folder}/fd"), limits.get("Max open files"), f"{folder}/limits: Max open files"
    )
    size = number(status.get("VmSize", "").partition(" ")[0])
    space = groups.counted(str(size * 1024 if size else ""), limits.get("Max address space"), f"{folder}/limits")
    user = groups.user_tasks(first, status, limits.get("Max processes"), f"{folder}/limits: Max processes")
    parent, _, parents_cpus = first.get("parent", "").partition("\t")
    unread = [] if f"{folder}/status" in first else [f"{folder}/status cannot be read"]
    unread += [
        f"no cgroup of {controller} is mounted here, or it is outside of our container"
        for controller in groups.GROUP_FILES
        if not first.get(f"groups {controller}")
    ]
    found = Surroundings(
        online=len(online),
        allowed=tuple(allowed),
        cpuset=min(map(len, filter(None, sets)), default=None),
        pinned_parent=parent if parents_cpus == status.get("Cpus_allowed_list") else "",
        quota=groups.quota_in(first, later, seconds),
        memory=groups.memory_in(first, later, seconds),
        tasks=groups.tasks_in(first),
        user_tasks=user,
        descriptors=descriptors,
        address_space=space,
        threads=tuple(_turns(folder, first, later, seconds)),
        idle=_idle(first, later, set(online) - set(allowed)),
        seconds=seconds,
        files=(),
        unread=tuple(unread),
        ready=_ready(first, later),
    )
    return found._replace(files=tuple(_evidence(found, folder, status, f"{folder}/{_NAMESPACE}" in first)))


def _evidence(found: Surroundings, folder: str, status: Mapping[str, str], is_in_container: bool) -> Iterator[str]:
    if is_in_container:
        yield (
            f"{folder}/ns/cgroup: not ours, but a container's: groups and limits stand here as this machine has them; "
            "in the container its own group is called /"
        )
    if found.allowed:
        yield f"{folder}/status: Cpus_allowed_list {status.get('Cpus_allowed_list', '')}; {found.online} are online"
    quota = found.quota
    if quota:
        when = "between two readings" if quota.seconds is not None else "since the cgroup was created"
        yield (
            f"{quota.group}: {quota.processors:g} CPUs for each {quota.period_ms:g} ms; "
            f"{quota.throttled} of {quota.periods} periods throttled {when}"
        )
    if found.memory:
        yield (
            f"{found.memory.group}: {found.memory.used} bytes used, memory.high {found.memory.high}, limit "
            f"{found.memory.limit}"
        )
    for allowance in (found.tasks, found.user_tasks, found.descriptors, found.address_space):
        if allowance:
            yield f"{allowance.source}: {allowance.used} of {allowance.limit}"


def _letter(stat: str) -> str:
    """The state letter of proc_pid_stat(5)."""
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


def _turns(folder: str, first: Texts, later: Texts, seconds: float | None) -> Iterator[Turns]:
    for path in first:
        words = path.split("/")
        tid = number(words[4]) if path.startswith(f"{folder}/task/") and path.endswith("/schedstat") else None
        if tid is None:
            continue
        schedstats = [_run_and_wait(texts.get(path, "")) for texts in (first, later)]
        stats = [texts.get(f"{folder}/task/{tid}/stat", "") for texts in (first, later)]
        state = _letter(stats[0] or ") S")
        ran_ms = waited_ms = faults = None
        if seconds is not None and schedstats[0] and schedstats[1]:
            ran_ms, waited_ms = ((after - before) / 1e6 for before, after in zip(*schedstats))
            # The scheduler adds a thread's waiting time when the thread gets a CPU: one that was ready both times and
            # did not run waited all the time. On a CPU without ticks (nohz_full) utime and stime still show that it
            # runs.
            used = [[_field(stat, at) for at in (_USER_TIME, _SYSTEM_TIME)] for stat in stats]
            if not ran_ms + waited_ms and state == _letter(stats[1]) == "R" and used[0] == used[1]:
                waited_ms = seconds * 1e3
            counts = [_field(stat, _MAJOR_FAULTS) for stat in stats]
            faults = counts[1] - counts[0] if counts[0] is not None and counts[1] is not None else None
            ran_ms, waited_ms = round(ran_ms, 2), round(waited_ms, 2)
        if state == "S" and not ran_ms and not waited_ms:
            continue  # it slept all the time
        policy, nice = _field(stats[0], _POLICY), _field(stats[0], _NICE)
        # policies of threads that come after the others (sched(7), include/uapi/linux/sched.h)
        low = {3: "SCHED_BATCH", 5: "SCHED_IDLE"}.get(policy or 0, "")
        priority = low or (f"nice {nice}" if nice is not None and nice > 0 else "")
        yield Turns(tid, state, ran_ms, waited_ms, faults, priority)


def _run_and_wait(schedstat: str) -> tuple[int, int] | None:
    """Nanoseconds that a thread ran, and that it waited for a CPU."""
    times = [number(word) for word in schedstat.split()[:2]]
    return (times[0], times[1]) if len(times) == 2 and times[0] is not None and times[1] is not None else None


def _field(stat: str, at: int) -> int | None:
    fields = stat_fields(stat)
    return number(fields[at]) if len(fields) > at else None


def _ready(first: Texts, later: Texts) -> float | None:
    """The fourth word of /proc/loadavg (proc_loadavg(5)), less one for the reader itself."""
    words = [texts.get("/proc/loadavg", "").split() for texts in (first, later)]
    counts = [count for each in words if len(each) > 3 and (count := number(each[3].partition("/")[0])) is not None]
    return sum(counts) / len(counts) - 1 if counts else None


def _idle(first: Texts, later: Texts, processors: set[int]) -> float | None:
    """The share of idle time of some CPUs, by /proc/stat (proc_stat(5): idle and iowait are the fourth and fifth
    number)."""
    before, after = _processor_times(first, processors), _processor_times(later, processors)
    if not before or not after or after[1] <= before[1]:
        return None
    return round((after[0] - before[0]) / (after[1] - before[1]), 3)


def _processor_times(texts: Texts, processors: set[int]) -> tuple[int, int] | None:
    """(idle, total) clock ticks of some CPUs."""
    idle = total = 0
    for line in texts.get("/proc/stat", "").splitlines():
        name, *rest = line.split() or [""]
        if name.startswith("cpu") and number(name[3:]) in processors:
            times = [number(word) or 0 for word in rest[:8]]
            idle, total = idle + sum(times[3:5]), total + sum(times)
    return (idle, total) if total else None
