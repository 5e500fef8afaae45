"""Surroundings: what control groups, limits and the scheduler allow a process, and how much of that it uses. Linux.

Files of /proc and /sys are read into texts by path; where two moments tell more than one (a quota that is used up,
threads that wait for a processor), twice, with a pause in which nobody of us runs. A recording keeps the texts, and all
that is said follows from them. Sources: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/, sched-stats.rst,
proc_pid_limits(5), Linux 6.18.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence

from gdbext.engine.record import Record
from gdbext.engine.targets.live.proc_checks import living_threads
from gdbext.engine.targets.system.linux import number, stat_fields

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Readings, Target
    from gdbext.engine.targets.host_files import HostFiles
    from gdbext.engine.targets.system.machine import Machine

Texts = Mapping[str, str]
"""Path of a file → its text; ``groups CONTROLLER`` → the folders of its groups, the process's own one first."""
_KEPT = "machine"
"""The name of the texts in a recording."""
_GROUP_FILES = {
    "cpu": ("cpu.max", "cpu.stat", "cpu.cfs_quota_us", "cpu.cfs_period_us"),
    "memory": (
        "memory.current", "memory.high", "memory.max", "memory.events", "memory.pressure", "memory.swap.current",
        "memory.usage_in_bytes", "memory.limit_in_bytes", "memory.failcnt",
    ),
    "pids": ("pids.current", "pids.max", "pids.events"),
    "cpuset": ("cpuset.cpus.effective", "cpuset.effective_cpus"),
}  # fmt: skip
"""Controller → its files, of the unified hierarchy and of the older ones."""
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
_UNLIMITED = 1 << 60
"""Limits of memory from there on are none (PAGE_COUNTER_MAX, include/linux/page_counter.h)."""
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
_NO_LIMIT_CAPABILITIES = 1 << 24 | 1 << 21
"""CAP_SYS_RESOURCE and CAP_SYS_ADMIN: RLIMIT_NPROC does not hold for who has one (setrlimit(2))."""
_MAX_DESCRIPTORS = 4096


class Quota(Record):
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


class Allowance(Record):
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


class MemoryUse(Record):
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


class Turns(Record):
    """A thread that runs or wants to, between the readings; milliseconds, None where there is but one reading."""

    tid: int
    state: str
    running_ms: float | None
    delayed_ms: float | None
    """Time in which it was ready, and no processor was free for it."""
    major_faults: int | None
    priority: str
    """The reason why it comes behind others: ``SCHED_IDLE``, ``nice 19``; "" for an ordinary one."""


class Surroundings(Record):
    """Everything that was read; what is unknown is None or empty."""

    online: int
    """Processors that this machine has online."""
    allowed: tuple[int, ...]
    """Processors on which the main thread may run."""
    cpuset: int | None
    """Number of processors of the control group, None without one."""
    pinned_parent: str
    """The parent process, where it may run on the same processors; "" where it may not."""
    quota: Quota | None
    memory: MemoryUse | None
    tasks: Allowance | None
    """Processes and threads of the control group (pids.max)."""
    user_tasks: Allowance | None
    """Processes and threads of the process's user (RLIMIT_NPROC)."""
    descriptors: Allowance | None
    address_space: Allowance | None
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
    pid, files = target.pid, target.files
    kept = files.kept(_KEPT)
    if kept:
        return understood(pid, *_checked(kept))
    if not files.are_here:
        return None
    found = target.readings or readings(pid, tids, machine)
    files.keep(_KEPT, lambda: _packed(found))
    return understood(pid, *found)


def _packed(found: Readings) -> str:
    import json

    return json.dumps(found)


def readings_ahead(pid: int) -> Readings:
    """Read the surroundings of a process that is about to be stopped for longer."""
    from gdbext.engine.targets.host_files import HostFiles
    from gdbext.engine.targets.system.machine import Machine
    from gdbext.engine.targets.system.peer import ChildProcess

    return readings(pid, sorted(living_threads(pid)), Machine(pid, HostFiles(), ChildProcess))


def _checked(kept: str) -> Readings:
    """The texts that a recording kept; nothing of a damaged one."""
    import json

    try:
        first, later, seconds = json.loads(kept)
        texts = [{str(path): str(text) for path, text in each.items()} for each in (first, later)]
        return texts[0], texts[1], float(seconds) if seconds is not None else None
    except (ValueError, TypeError, AttributeError):
        return {}, {}, None


# --- reading -----------------------------------------------------------------------------------------


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
    for controller, names in _GROUP_FILES.items():
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
    pid = _fields(_text(status)).get("PPid", "0")
    theirs = _fields(_text(f"/proc/{pid}/status")) if pid not in ("", "0") else {}
    if theirs:
        yield "parent", f"{pid} {theirs.get('Name', '?')}\t{theirs.get('Cpus_allowed_list', '')}"


def _read_all(paths: Sequence[str]) -> Iterator[tuple[str, str]]:
    for path in paths:
        text = _text(path)
        if text:
            yield path, text


def _text(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        return os.read(descriptor, 1 << 16).decode(errors="replace")
    except OSError:
        return ""
    finally:
        os.close(descriptor)


def _descriptor_count(pid: int) -> int | None:
    """The number of descriptors: the size of the folder, from Linux 6.2 on."""
    try:
        return os.stat(f"/proc/{pid}/fd").st_size or len(os.listdir(f"/proc/{pid}/fd"))  # noqa: PTH116, PTH208
    except OSError:
        return None


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


def pause_for(pid: int, texts: Texts) -> float:
    """Seconds after which a second reading tells more; 0 where it would not, or somebody has stopped the process."""
    once = understood(pid, texts, {}, None)
    wanting = [each for each in once.threads if each.state == "R"]
    if not once.threads or any(_letter(texts[path]) in ("t", "T") for path in texts if path.endswith("/stat")):
        return 0.0
    pause = 0.0
    if once.quota is not None and once.quota.throttled and wanting:
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


# --- understanding -----------------------------------------------------------------------------------


def understood(pid: int, first: Texts, later: Texts, seconds: float | None) -> Surroundings:
    """Draw from the texts what they say of the process."""
    folder = f"/proc/{pid}"
    status = _fields(first.get(f"{folder}/status", ""))
    allowed = numbers_of(status.get("Cpus_allowed_list", ""))
    online = numbers_of(first.get(_ONLINE, ""))
    sets = [numbers_of(text) for each in _folders(first, "cpuset") for text in _values(first, each, "cpuset")]
    quota = _quota(first, later, seconds)
    memory = _memory(first, later, seconds)
    tasks = _tasks(first)
    limits = dict(_limits(first.get(f"{folder}/limits", "")))
    descriptors = _counted(first.get(f"{folder}/fd"), limits.get("Max open files"), f"{folder}/limits: Max open files")
    size = number(status.get("VmSize", "").partition(" ")[0])
    space = _counted(str(size * 1024 if size else ""), limits.get("Max address space"), f"{folder}/limits")
    user = _user_tasks(first, status, limits.get("Max processes"), f"{folder}/limits: Max processes")
    parent, _, theirs = first.get("parent", "").partition("\t")
    inherited = parent if theirs == status.get("Cpus_allowed_list") else ""
    found = Surroundings(
        len(online), tuple(allowed), min(map(len, filter(None, sets)), default=None), inherited, quota, memory, tasks,
        user, descriptors, space, tuple(_turns(folder, first, later, seconds)),
        _idle(first, later, set(online) - set(allowed)), seconds, (), tuple(_unread(first, folder)),
        _ready(first, later),
    )  # fmt: skip
    inside = [_IN_CONTAINER.format(folder)] if f"{folder}/{_NAMESPACE}" in first else []
    return found._replace(files=(*inside, *_evidence(found, folder, status)))


def _unread(first: Texts, folder: str) -> Iterator[str]:
    if f"{folder}/status" not in first:
        yield f"{folder}/status cannot be read"
    for controller in _GROUP_FILES:
        if not first.get(f"groups {controller}"):
            yield f"no control group of {controller} is mounted here, or it is outside of our container"


def _evidence(found: Surroundings, folder: str, status: Mapping[str, str]) -> Iterator[str]:
    if found.allowed:
        yield f"{folder}/status: Cpus_allowed_list {status.get('Cpus_allowed_list', '')}; {found.online} are online"
    quota = found.quota
    if quota is not None:
        when = "between two readings" if quota.seconds is not None else "since the group was made"
        yield (
            f"{quota.group}: {quota.processors:g} processors for each {quota.period_ms:g} ms; "
            f"{quota.throttled} of {quota.periods} periods throttled {when}"
        )
    if found.memory is not None:
        yield (
            f"{found.memory.group}: {found.memory.used} bytes used, memory.high {found.memory.high}, limit "
            f"{found.memory.limit}"
        )
    for each in (found.tasks, found.user_tasks, found.descriptors, found.address_space):
        if each is not None:
            yield f"{each.source}: {each.used} of {each.limit}"


def _letter(stat: str) -> str:
    """The state of proc_pid_stat(5), the first field behind the name."""
    return "".join(stat_fields(stat)[:1])[:1]


def _fields(text: str) -> dict[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in text.splitlines())}


def numbers_of(text: str) -> list[int]:
    """``0-3,8`` as numbers (cpuset(7), "List format")."""
    found: list[int] = []
    for part in text.strip().split(","):
        low, _, high = part.partition("-")
        first, last = number(low), number(high or low)
        if first is not None and last is not None and last - first < 1 << 16:
            found += range(first, last + 1)
    return found


def _folders(texts: Texts, controller: str) -> list[str]:
    return [each for each in texts.get(f"groups {controller}", "").split("\n") if each]


def _values(texts: Texts, folder: str, controller: str) -> Iterator[str]:
    return (texts[path] for name in _GROUP_FILES[controller] if (path := f"{folder}/{name}") in texts)


def _table(text: str) -> dict[str, int]:
    """Read lines of a name and a number."""
    words = (line.split() for line in text.splitlines())
    return {each[0]: value for each in words if len(each) == 2 and (value := number(each[1])) is not None}


def _quota(first: Texts, later: Texts, seconds: float | None) -> Quota | None:
    """The quota that holds the process up most, of its group and of those around it; else the smallest."""
    found = [quota for folder in _folders(first, "cpu") if (quota := _quota_of(folder, first, later, seconds))]
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
        folder, round(quota / period, 3), period / 1e3, counts.get("nr_periods", 0), counts.get("nr_throttled", 0),
        round(stood, 1), seconds if path in later else None,
    )  # fmt: skip


def _memory(first: Texts, later: Texts, seconds: float | None) -> MemoryUse | None:
    """The memory of the group with the least room."""
    found = [use for folder in _folders(first, "memory") if (use := _memory_of(folder, first, later, seconds))]
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


def _tasks(first: Texts) -> Allowance | None:
    """The pids controller of the group with the least room."""
    found = []
    for folder in _folders(first, "pids"):
        used, limit = (number(first.get(f"{folder}/pids.{name}", "").strip()) for name in ("current", "max"))
        if used is not None and limit is not None:
            refused = _table(first.get(f"{folder}/pids.events", "")).get("max")
            found.append(Allowance(used, limit, f"{folder}/pids.max", refused))
    return min(found, key=lambda each: each.limit - each.used, default=None)


def _limits(text: str) -> Iterator[tuple[str, str]]:
    """Name → soft limit (proc_pid_limits(5)): columns of a fixed width."""
    for line in text.splitlines()[1:]:
        yield line[:26].strip(), line[26:47].strip()


def _counted(used: str | None, limit: str | None, source: str) -> Allowance | None:
    count, most = number(used or ""), number(limit or "")
    return None if count is None or most is None else Allowance(count, most, source)


def _user_tasks(first: Texts, status: Mapping[str, str], limit: str | None, source: str) -> Allowance | None:
    """All tasks of the machine, as an upper bound of those of the user; None where that leaves room, or the limit does
    not hold for the process."""
    capable = number(status.get("CapEff", ""), 16) or 0
    words = first.get("/proc/loadavg", "").split()
    tasks = words[3].partition("/")[2] if len(words) > 3 else ""
    found = _counted(tasks, limit, source)
    if found is None or not found.is_used_up or capable & _NO_LIMIT_CAPABILITIES:
        return None
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
    if before is None or after is None or after[1] <= before[1]:
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
