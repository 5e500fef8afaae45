"""Checks whether a process can be looked at, asked of /proc alone: quick, without stopping it, before any debugger
starts.

Imports next to nothing: the launcher asks here while nothing else is loaded yet.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING

from gdbext.engine.arch import architectures
from gdbext.engine.formats.elf_header import identify
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import split_stat, stat_fields, status_values
from gdbext.errors import NoSuchProcess, NotPermitted, TargetError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_TRACED_SECONDS, _TRACED_PAUSE = 0.5, 0.01
"""Seconds that somebody else may trace a process who holds it for a moment, and between two looks."""
CAP_SYS_PTRACE = 19
"""The capability's bit in CapEff (linux/capability.h)."""

SERVED = ("fuse", "nfs", "cifs", "smb", "ceph", "lustre", "gpfs", "beegfs", "9p", "afs", "gluster", "virtiofs")
"""Beginnings of the types of file systems that need a server to answer."""


def thread_state(pid: int, tid: int | str) -> str:
    """The state letter of a thread (R, S, D, T, t, Z, X; proc_pid_stat(5)). Raises OSError: it is gone."""
    return thread_stat(pid, tid)[0]


def thread_stat(pid: int, tid: int | str) -> tuple[str, str]:
    """The state letter of a thread and its name (comm). Raises OSError: it is gone."""
    name, fields = split_stat(proc_files.line(f"/proc/{pid}/task/{tid}/stat"))
    return fields[:1], name


def parent(pid: int) -> int:
    """The pid of its parent; 0 where it is gone."""
    try:
        return int(stat_fields(proc_files.read(f"/proc/{pid}/stat"))[1])
    except OSError:
        return 0


def ends_with_tracer(pid: int) -> bool:
    """The debugger that traces it has started it, and ends it when it ends itself (PTRACE_O_EXITKILL, ptrace(2))."""
    return tracer(pid, pid) == parent(pid) != 0


def thread_states(pid: int, skipped: Container[int] = ()) -> dict[int, str]:
    """Thread id to state letter, of all threads but the ``skipped``. Raises OSError: the process is gone."""
    return {tid: state for tid, (state, _) in thread_stats(pid, skipped).items()}


def thread_stats(pid: int, skipped: Container[int] = ()) -> dict[int, tuple[str, str]]:
    """Thread id to state letter and name, of all threads but the ``skipped``. Raises OSError: the process is gone."""
    found = {}
    for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - strings are all that is needed
        if int(name) in skipped:
            continue
        try:
            found[int(name)] = thread_stat(pid, name)
        except OSError:
            continue
    return found


def living_threads(pid: int, skipped: Container[int] = ()) -> set[int]:
    """Ids of the threads that have not ended, but the ``skipped``; none of a process that is gone. Raises nothing."""
    try:
        return {tid for tid, state in thread_states(pid, skipped).items() if state not in "ZX"}
    except OSError:
        return set()


def alive_in(pid: int) -> int:
    """The main thread of a process, or another where that one has left by pthread_exit(3): what goes with the memory of
    the process is then in the folders of its other threads alone (/proc/TID is not listed, but there)."""
    try:
        states = thread_states(pid) if thread_state(pid, pid) in ("Z", "X") else {}
    except OSError:
        states = {}
    return next((tid for tid in sorted(states) if states[tid] not in "ZX"), pid)


def status_fields(path: str) -> dict[str, str]:
    """The values in a status file, {} where it cannot be read."""
    try:
        return status_values(proc_files.read(path))
    except OSError:
        return {}


def check_process(pid: int) -> int:
    """The e_machine of the program, or the error that says why process ``pid`` cannot be analysed.

    Raises NoSuchProcess, NotPermitted, ForeignArchitecture, TargetGone, TargetError (zombie, kernel thread, ourselves).
    """
    check_exists(pid)
    check_not_traced(pid, pid)
    return check_readable(pid)


def check_readable(pid: int) -> int:
    """The same, whoever traces the process: it can be read, and perhaps not stopped."""
    check_exists(pid)
    machine = check_architecture(pid)
    check_permitted(pid)
    return machine


def check_exists(pid: int) -> None:
    """The PID is that of a living user process, not of one of its other threads."""
    fields = status_fields(f"/proc/{pid}/status") if pid > 0 else {}
    if not fields:
        raise NoSuchProcess(f"there is no process {pid}")
    leader = int(fields.get("Tgid", pid))
    if leader != pid:
        raise NoSuchProcess(
            f"{pid} is not a process but a thread of process {leader}", why="", help=f"use: -p {leader}"
        )
    if pid == os.getpid():
        raise TargetError(
            f"{pid} is this very process",
            why="a process cannot stop itself to be looked at",
            help="look at it from another process",
        )
    if fields.get("State", "")[:1] in ("Z", "X"):
        _refuse_zombie(pid, fields)


def _refuse_zombie(pid: int, fields: dict[str, str]) -> None:
    # A main thread that called pthread_exit is a zombie while its process lives on.
    if living_threads(pid):
        return
    parent = fields.get("PPid", "?")
    raise TargetError(
        f"process {pid} ({fields.get('Name', '?')}) is a zombie: it has ended and nothing of it is left to read",
        why=f"its parent, process {parent}, has not collected its exit status yet",
        help=f"look at the parent instead (-p {parent}), or at a core dump of {pid} if one was written",
    )


def tracer(pid: int, tid: int) -> int:
    """The process that traces a thread, 0 where none does (TracerPid of proc_pid_status(5))."""
    return int(status_fields(f"/proc/{pid}/task/{tid}/status").get("TracerPid", 0) or 0)


def holder(pid: int) -> int:
    """The process that traces process ``pid``, and lets none of its threads run; 0 where there is
    none. Who holds it for a moment only is waited for. Raises nothing."""
    deadline = time.monotonic() + _TRACED_SECONDS
    while (other := tracer(pid, pid)) not in (0, os.getpid()):
        if any(state != "t" for state in _living_states(pid)):
            return 0
        if time.monotonic() >= deadline:
            return other
        time.sleep(_TRACED_PAUSE)
    return 0


def foreign_tracer(pid: int) -> int:
    """The process that traces process ``pid``, whether it lets the threads run or not, so that nobody else can stop
    them; 0 where there is none. Who traces it for a moment only is waited for. Raises nothing."""
    deadline = time.monotonic() + _TRACED_SECONDS
    while (other := tracer(pid, pid)) not in (0, os.getpid()) and time.monotonic() < deadline:
        time.sleep(_TRACED_PAUSE)
    return other if other != os.getpid() else 0


def _living_states(pid: int) -> list[str]:
    try:
        return [state for state in thread_states(pid).values() if state not in "ZX"] or [""]
    except OSError:
        return [""]


def check_not_traced(pid: int, tid: int) -> None:
    """No debugger is attached to the thread; who only holds it for a moment is waited for. Raises NotPermitted."""
    deadline = time.monotonic() + _TRACED_SECONDS
    ours = (0, os.getpid())
    while (other := tracer(pid, tid)) not in ours and time.monotonic() < deadline:
        time.sleep(_TRACED_PAUSE)
    if other not in ours:
        name = status_fields(f"/proc/{other}/status").get("Name", "unknown")
        raise NotPermitted(
            f"process {pid} is already being traced by process {other} ({name})",
            why="only one debugger can be attached at a time",
            help=f"detach there or end it (kill {other}); if it is gdb, run: source gdbext/init.py   in it",
        )


def check_permitted(pid: int) -> None:
    """The kernel lets us attach; opening /proc/PID/mem asks it the same question (proc_pid_mem(5))."""
    os.close(open_memory(pid))


def open_memory(pid: int) -> int:
    """A descriptor of /proc/PID/mem. Raises NotPermitted, TargetGone."""
    try:
        return os.open(f"/proc/{alive_in(pid)}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        raise refusal(pid) from None
    except OSError as error:
        raise TargetGone.of(pid) from error


_NOBODY = 3
"""The value of ptrace_scope with which nobody may attach until the next boot (admin-guide/LSM/Yama.rst)."""


def refusal(pid: int) -> NotPermitted:
    """NotPermitted with what is known of the reason: owner, ptrace_scope, capability, container."""
    reasons, remedies = [], []
    as_root = os.geteuid() == 0
    owner = status_fields(f"/proc/{pid}/status").get("Uid", "?").split()[0]
    if owner != str(os.geteuid()):
        reasons.append(f"it belongs to uid {owner} and you are uid {os.geteuid()}")
        if not as_root:
            remedies.append(f"run it as that user or as root: sudo scripts/dispatch -p {pid}")
    scope = _ptrace_scope()
    if scope > 0:
        meaning = {1: "only a parent may attach", 2: "only root may attach", 3: "nobody may attach"}
        reasons.append(f"{PTRACE_SCOPE} is {scope}: {meaning.get(scope, 'restricted')}")
        if scope == _NOBODY:
            remedies = ["only a reboot changes that"]
        elif not remedies and not as_root:
            lower = ", or let all your processes be looked at: sudo sysctl kernel.yama.ptrace_scope=0"
            remedies.append(f"sudo scripts/dispatch -p {pid}{lower if scope == 1 else ''}")
    if not has_ptrace_capability():
        reasons.append("this process has no CAP_SYS_PTRACE")
        if as_root and scope != _NOBODY:
            remedies.append(
                "give the container the capability (docker run --cap-add=SYS_PTRACE; Kubernetes: securityContext: "
                "capabilities: add: [SYS_PTRACE]), or run it on the host"
            )
    return NotPermitted(
        f"not permitted to look at process {pid}",
        why="; ".join(reasons) or "a security module, a user namespace or PR_SET_DUMPABLE forbids it",
        help="; ".join(remedies) or "run it on the host, outside of the container or sandbox",
    )


def has_ptrace_capability() -> bool:
    """True if we hold CAP_SYS_PTRACE (in our user namespace)."""
    effective = status_fields("/proc/self/status").get("CapEff", "0")
    return bool(int(effective, 16) >> CAP_SYS_PTRACE & 1)


def _ptrace_scope() -> int:
    try:
        return int(proc_files.text(PTRACE_SCOPE))
    except (OSError, ValueError):
        return 0


_KERNEL_THREAD = 0x200000
"""The flag PF_KTHREAD of a thread (include/linux/sched.h)."""
_FLAGS = 9 - 3
"""flags of proc_pid_stat(5), counted from the state, its third field."""


def _is_kernel_thread(pid: int) -> bool:
    """True for a kernel thread, by the flags of the task: one that ends has no program any more either."""
    try:
        return bool(int(stat_fields(proc_files.read(f"/proc/{pid}/stat"))[_FLAGS]) & _KERNEL_THREAD)
    except (OSError, ValueError, IndexError):
        return False


def check_architecture(pid: int) -> int:
    """The program is one that can be read; its e_machine."""
    try:
        with open(f"/proc/{alive_in(pid)}/exe", "rb") as file:
            header = file.read(20)
    except FileNotFoundError as error:
        check_exists(pid)  # else it has just ended
        if not _is_kernel_thread(pid):
            raise TargetGone.of(pid) from error
        raise TargetError(
            f"process {pid} runs no program: it is a kernel thread",
            why="the kernel's own threads have no memory that a program could use",
            help="find the process with: scripts/dispatch ps",
        ) from error
    except PermissionError:
        raise refusal(pid) from None
    except OSError as error:
        raise TargetGone.of(pid) from error
    found = identify(header)
    if not found:
        raise architectures.foreign(f"the program of process {pid} is not an ELF file")
    if not found.is_ours or not architectures.supported(found.machine):
        raise architectures.foreign(f"process {pid} runs a {found.bits}-bit program (ELF machine {found.machine})")
    return found.machine


def uses_servers(pid: int) -> bool:
    """The process has a file of such a file system open or mapped, or its program or its folder is there: links and
    maps of /proc tell, which ask no server. For a process none of whose threads sleeps uninterruptibly."""
    places = tuple(f"{place.rstrip('/')}/" for place in served_places(pid))
    return bool(places) and any(f"{path}/".startswith(places) for path in _paths_of(pid))


def served_places(pid: int) -> list[str]:
    """The places where file systems are mounted that need a server to answer (proc_pid_mountinfo(5)); that of the root
    does not count, for without it nothing goes on at all."""
    try:
        lines = proc_files.head(f"/proc/{pid}/mountinfo", proc_files.TABLE).decode(errors="replace").splitlines()
        mounts = [line.split(" - ", 1) for line in lines]
    except OSError:
        return []
    return [
        _unescaped(mount[0].split()[4])
        for mount in mounts
        if len(mount) == 2
        and mount[1].startswith(SERVED)
        and not mount[1].startswith(("fusectl", "fuse.lxcfs"))
        and " / / " not in mount[0]
    ]


def _unescaped(place: str) -> str:
    """The path as it is: the kernel writes these four as octal digits there (fs/proc_namespace.c)."""
    for digits, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        place = place.replace(f"\\{digits}", character)
    return place


_PATHS = re.compile("/.*")
"""The path of a line of /proc/PID/maps."""


def _paths_of(pid: int) -> Iterator[str]:
    folder = f"/proc/{alive_in(pid)}"
    try:
        descriptors = [f"fd/{name}" for name in os.listdir(f"{folder}/fd")]  # noqa: PTH208 - as above
    except OSError:
        descriptors = []
    for name in ("exe", "cwd", *descriptors):
        try:
            yield os.readlink(f"{folder}/{name}")  # noqa: PTH115 - pathlib is slow to import
        except OSError:
            continue
    try:
        yield from _PATHS.findall(proc_files.head(f"{folder}/maps", proc_files.TABLE).decode(errors="replace"))
    except OSError:
        return
