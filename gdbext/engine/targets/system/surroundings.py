"""Surroundings: what control groups, limits and the scheduler allow a process, and how much of that it uses. Linux.

Files of /proc and /sys are read into texts by path; where two moments tell more than one (a quota that is used up,
threads that wait for a processor), twice, with a pause in which nobody of us runs. A recording keeps the texts, and all
that is said follows from them. Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/, sched-stats.rst,
proc_pid_limits(5), Linux 6.18.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.numbers import number
from gdbext.engine.targets.host_files import HostFiles
from gdbext.engine.targets.live.proc_checks import living_threads
from gdbext.engine.targets.system import control_groups as groups
from gdbext.engine.targets.system import proc_files
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
_IN_CONTAINER = (
    "{}/ns/cgroup: not ours, but a container's: groups and limits stand here as this machine has them; in "
    "the container its own group is called /"
)
_ONLINE = "/sys/devices/system/cpu/online"
_MAX_THREADS = 512
_PAUSE = 0.25
"""Seconds between two readings: two periods of an ordinary quota."""
_MAX_PAUSE = 0.6
_MAJOR = 12 - 3
"""majflt of proc_pid_stat(5), counted from the state."""
_TIMES = (14 - 3, 15 - 3)
"""utime and stime of proc_pid_stat(5), counted likewise."""
_NICE, _POLICY = 19 - 3, 41 - 3
"""nice and policy of proc_pid_stat(5), counted likewise."""
_LOW_POLICIES = {3: "SCHED_BATCH", 5: "SCHED_IDLE"}
"""Policies of threads that come after the others (sched(7), include/uapi/linux/sched.h)."""
_DELAYED = 0.75
"""Share of a thread's time in which it has waited for a processor so far, from which on a second reading is worth
it."""


class Turns(NamedTuple):
    """A thread that runs or wants to, between the readings; milliseconds, None where there is but one reading."""

    tid: int
    state: str
    running_ms: float | None
    delayed_ms: float | None
    """Time in which it was ready, and no processor was free for it."""
    major_faults: int | None
    priority: str
    """The reason why it comes behind others: ``SCHED_IDLE``, ``nice 19``; "" for an ordinary one."""


class Surroundings(NamedTuple):
    """Everything that was read; what is unknown is None or empty."""

    online: int
    """Processors that this machine has online."""
    allowed: tuple[int, ...]
    """Processors on which the main thread may run."""
    cpuset: int | None
    """Number of processors of the control group, None without one."""
    pinned_parent: str
    """The parent process, where it may run on the same processors; "" where it may not."""
    quota: groups.Quota | None
    memory: groups.MemoryUse | None
    tasks: groups.Allowance | None
    """Processes and threads of the control group (pids.max)."""
    user_tasks: groups.Allowance | None
    """Processes and threads of the process's user (RLIMIT_NPROC)."""
    descriptors: groups.Allowance | None
    address_space: groups.Allowance | None
    threads: tuple[Turns, ...]
    idle: float | None
    """Share of time in which the processors on which it may not run were idle."""
    seconds: float | None
    """Seconds between the readings; None where there is but one."""
    files: tuple[str, ...]
    """The lines that all this follows from, each behind its file."""
    unread: tuple[str, ...]
    ready: float | None = None
    """Threads of the whole machine that ran or were ready to, ourselves left out: the mean of both readings."""

    @property
    def ordinary_share(self) -> float | None:
        """The part of its time in which a thread of an ordinary priority can expect to run on this machine."""
        return None if self.ready is None else min(1.0, self.online / max(1.0, self.ready))


def surroundings(target: Target, tids: Sequence[int], machine: Machine) -> Surroundings | None:
    """Read what surrounds a process with its threads ``tids``; None for a recording without it. Pauses for a quarter
    of a second where the first reading says that the process may be held up."""
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
    """Read the surroundings of a process that is about to be stopped for longer."""
    return readings(pid, sorted(living_threads(pid)), Machine(pid, HostFiles(), ChildProcess))


def _checked(kept: str) -> Readings:
    """The texts that a recording kept; nothing of a damaged one."""
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
    again = [path for path in first if path.endswith(_COUNTERS)]
    known = set(again)  # and those threads that only just slept: a team takes turns
    again += [path for tid in tids[:_MAX_THREADS] if (path := f"/proc/{pid}/task/{tid}/schedstat") not in known]
    first.update(_read_all(again))  # the reading took some time itself
    began = time.monotonic()
    time.sleep(pause)
    return first, dict(_read_all(again)), round(time.monotonic() - began, 4)


def _first_texts(pid: int, tids: Sequence[int], machine: Machine) -> Iterator[tuple[str, str]]:
    folder = f"/proc/{pid}"
    yield from _read_all([f"{folder}/status", f"{folder}/limits", _ONLINE, "/proc/stat", "/proc/loadavg"])
    yield from _parent(f"{folder}/status")
    own, theirs = _namespace("/proc/self"), _namespace(folder)
    if own and theirs and own != theirs:
        yield f"{folder}/{_NAMESPACE}", theirs
    count = _descriptor_count(pid)
    if count is not None:
        yield f"{folder}/fd", str(count)
    for tid in tids[:_MAX_THREADS]:
        state = _text(f"{folder}/task/{tid}/stat")
        if _letter(state) in ("R", "D"):
            yield f"{folder}/task/{tid}/stat", state
            yield from _read_all([f"{folder}/task/{tid}/schedstat"])
    for controller, names in groups.GROUP_FILES.items():
        folders = machine.group_folders(controller)
        yield f"groups {controller}", "\n".join(folders)
        yield from _read_all([f"{each}/{name}" for each in folders for name in names])


def _namespace(folder: str) -> str:
    try:
        return os.readlink(f"{folder}/{_NAMESPACE}")  # noqa: PTH115 - pathlib is slow to import
    except OSError:
        return ""


def _parent(status: str) -> Iterator[tuple[str, str]]:
    """``parent`` → pid, name and processors of the parent process."""
    pid = status_values(_text(status)).get("PPid", "0")
    theirs = status_values(_text(f"/proc/{pid}/status")) if pid not in ("", "0") else {}
    if theirs:
        yield "parent", f"{pid} {theirs.get('Name', '?')}\t{theirs.get('Cpus_allowed_list', '')}"


def _read_all(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        text = _text(path)
        if text:
            yield path, text


def _text(path: str) -> str:
    try:
        return proc_files.head(path, 1 << 16).decode(errors="replace")
    except OSError:
        return ""


def _descriptor_count(pid: int) -> int | None:
    """The number of descriptors: the size of the folder, from Linux 6.2 on."""
    try:
        return os.stat(f"/proc/{pid}/fd").st_size or len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH116, PTH208
    except OSError:
        return None


def pause_for(pid: int, texts: Texts) -> float:
    """Seconds after which a second reading tells more; 0 where it would not, or somebody has stopped the process."""
    once = understood(pid, texts, {}, None)
    wanting = [each for each in once.threads if each.state == "R"]
    if not once.threads or any(_letter(texts[path]) in ("t", "T") for path in texts if path.endswith("/stat")):
        return 0.0
    pause = 0.0
    if once.quota and once.quota.throttled and wanting:
        pause = max(_PAUSE, min(3.2 * once.quota.period_ms / 1e3, _MAX_PAUSE))
    if any(each.priority or _is_delayed(texts.get(f"/proc/{pid}/task/{each.tid}/schedstat", "")) for each in wanting):
        pause = max(pause, _PAUSE)
    memory = once.memory
    short = memory is not None and (memory.slowed or memory.full or (memory.stalled or 0) >= 5)
    if short or (wanting and len(once.allowed) < once.online) or len(wanting) > max(1, len(once.allowed)):
        pause = max(pause, _PAUSE)
    return pause


def _is_delayed(schedstat: str) -> bool:
    """The thread has so far waited for processors for as long as it ran."""
    times = _pair(schedstat)
    return times is not None and times[1] >= _DELAYED * sum(times) > 0


def understood(pid: int, first: Texts, later: Texts, seconds: float | None) -> Surroundings:
    """Draw from the texts what they say of the process."""
    folder = f"/proc/{pid}"
    status = status_values(first.get(f"{folder}/status", ""))
    allowed = numbers_of(status.get("Cpus_allowed_list", ""))
    online = numbers_of(first.get(_ONLINE, ""))
    sets = [
        numbers_of(text)
        for each in groups.folders_of(first, "cpuset")
        for text in groups.values_of(first, each, "cpuset")
    ]
    quota = groups.quota_in(first, later, seconds)
    memory = groups.memory_in(first, later, seconds)
    tasks = groups.tasks_in(first)
    limits = dict(groups.limits_in(first.get(f"{folder}/limits", "")))
    descriptors = groups.counted(
        first.get(f"{folder}/fd"), limits.get("Max open files"), f"{folder}/limits: Max open files"
    )
    size = number(status.get("VmSize", "").partition(" ")[0])
    space = groups.counted(str(size * 1024 if size else ""), limits.get("Max address space"), f"{folder}/limits")
    user = groups.user_tasks(first, status, limits.get("Max processes"), f"{folder}/limits: Max processes")
    parent, _, theirs = first.get("parent", "").partition("\t")
    inherited = parent if theirs == status.get("Cpus_allowed_list") else ""
    found = Surroundings(
        len(online),
        tuple(allowed),
        min(map(len, filter(None, sets)), default=None),
        inherited,
        quota,
        memory,
        tasks,
        user,
        descriptors,
        space,
        tuple(_turns(folder, first, later, seconds)),
        _idle(first, later, set(online) - set(allowed)),
        seconds,
        (),
        tuple(_unread(first, folder)),
        _ready(first, later),
    )
    inside = [_IN_CONTAINER.format(folder)] if f"{folder}/{_NAMESPACE}" in first else []
    return found._replace(files=(*inside, *_evidence(found, folder, status)))


def _unread(first: Texts, folder: str) -> Iterator[str]:
    if f"{folder}/status" not in first:
        yield f"{folder}/status cannot be read"
    for controller in groups.GROUP_FILES:
        if not first.get(f"groups {controller}"):
            yield f"no control group of {controller} is mounted here, or it is outside of our container"


def _evidence(found: Surroundings, folder: str, status: Mapping[str, str]) -> Iterator[str]:
    if found.allowed:
        yield f"{folder}/status: Cpus_allowed_list {status.get('Cpus_allowed_list', '')}; {found.online} are online"
    quota = found.quota
    if quota:
        when = "between two readings" if quota.seconds is not None else "since the group was made"
        yield (
            f"{quota.group}: {quota.processors:g} processors for each {quota.period_ms:g} ms; "
            f"{quota.throttled} of {quota.periods} periods throttled {when}"
        )
    if found.memory:
        yield (
            f"{found.memory.group}: {found.memory.used} bytes used, memory.high {found.memory.high}, limit "
            f"{found.memory.limit}"
        )
    for each in (found.tasks, found.user_tasks, found.descriptors, found.address_space):
        if each:
            yield f"{each.source}: {each.used} of {each.limit}"


def _letter(stat: str) -> str:
    """The state of proc_pid_stat(5), the first field behind the name."""
    return split_stat(stat)[1][:1]


def numbers_of(text: str) -> list[int]:
    """``0-3,8`` as numbers (cpuset(7), "List format")."""
    found: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        first, last = number(low), number(high or low)
        if first is not None and last is not None and last - first < 1 << 16:
            found += range(first, last + 1)
    return found


def _turns(folder: str, first: Texts, later: Texts, seconds: float | None) -> Iterator[Turns]:
    for each in first:
        words = each.split("/")
        tid = number(words[4]) if each.startswith(f"{folder}/task/") and each.endswith("/schedstat") else None
        if tid is None:
            continue
        path = f"{folder}/task/{tid}/stat"
        times = [_pair(texts.get(f"{folder}/task/{tid}/schedstat", "")) for texts in (first, later)]
        faults = [_field(texts.get(path, ""), _MAJOR) for texts in (first, later)]
        known = seconds is not None and None not in times
        ran, waited = [(b - a) / 1e6 for a, b in zip(times[0] or (0, 0), times[1] or (0, 0))]
        if (
            known
            and seconds is not None
            and not ran + waited
            and _had_no_turn(first.get(path, ""), later.get(path, ""))
        ):
            waited = seconds * 1e3
        more = faults[1] - faults[0] if known and faults[0] is not None and faults[1] is not None else None
        state = _letter(first.get(path, ") S"))
        if state == "S" and not (known and ran + waited):
            continue  # it slept all the time
        priority = _priority(first.get(path, ""))
        yield Turns(tid, state, round(ran, 2) if known else None, round(waited, 2) if known else None, more, priority)


def _had_no_turn(first: str, later: str) -> bool:
    """The thread was ready both times, and has not run between: the scheduler adds what it waited for to its sum when
    it gets a processor. On one without ticks (nohz_full) utime and stime still tell that it runs."""
    used = [[_field(text, at) for at in _TIMES] for text in (first, later)]
    return _letter(first) == _letter(later) == "R" and used[0] == used[1]


def _priority(stat: str) -> str:
    """``nice 10``: what puts a thread behind the others; "" where nothing does."""
    policy, nice = _field(stat, _POLICY), _field(stat, _NICE)
    low = _LOW_POLICIES.get(policy or 0, "")
    return low or (f"nice {nice}" if nice is not None and nice > 0 else "")


def _pair(text: str) -> tuple[int, int] | None:
    words = [number(word) for word in text.split()[:2]]
    return (words[0], words[1]) if len(words) == 2 and words[0] is not None and words[1] is not None else None


def _field(stat: str, at: int) -> int | None:
    fields = stat_fields(stat)
    return number(fields[at]) if len(fields) > at else None


def _ready(first: Texts, later: Texts) -> float | None:
    """The fourth word of /proc/loadavg (proc_loadavg(5)), less one for whoever reads it."""
    words = [texts.get("/proc/loadavg", "").split() for texts in (first, later)]
    counts = [count for each in words if len(each) > 3 and (count := number(each[3].partition("/")[0])) is not None]
    return sum(counts) / len(counts) - 1 if counts else None


def _idle(first: Texts, later: Texts, processors: set[int]) -> float | None:
    """The share of idle time of some processors, by /proc/stat (proc_stat(5): idle and iowait are the fourth and fifth
    number)."""
    before, after = _processor_times(first, processors), _processor_times(later, processors)
    if not before or not after or after[1] <= before[1]:
        return None
    return round((after[0] - before[0]) / (after[1] - before[1]), 3)


def _processor_times(texts: Texts, processors: set[int]) -> tuple[int, int] | None:
    idle = total = 0
    for line in texts.get("/proc/stat", "").splitlines():
        name, *rest = line.split() or [""]
        if name.startswith("cpu") and number(name[3:]) in processors:
            times = [number(word) or 0 for word in rest[:8]]
            idle, total = idle + sum(times[3:5]), total + sum(times)
    return (idle, total) if total else None
