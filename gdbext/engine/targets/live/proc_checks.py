"""Checks by /proc alone whether a process can be examined: quick, without stopping it, before any debugger starts.

Imports next to nothing: the launcher uses it while nothing else is loaded yet.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from gdbext.engine.arch import architectures
from gdbext.engine.formats.elf_header import identify
from gdbext.engine.numbers import number
from gdbext.engine.targets.system import proc_files
from gdbext.engine.targets.system.linux import mounts, split_stat, stat_fields
from gdbext.engine.targets.system.proc_files import file_text, folder_names, link_target, status_fields
from gdbext.errors import NoSuchProcess, NotPermitted, TargetError, TargetGone

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

PTRACE_SCOPE = "/proc/sys/kernel/yama/ptrace_scope"
_TRACED_SECONDS, _TRACED_PAUSE = 0.5, 0.01
"""Seconds that we wait for a tracer that holds the process only briefly, and between two checks."""
CAP_SYS_PTRACE = 19
"""The capability's bit in CapEff (linux/capability.h)."""

SERVED_TYPES = ("fuse", "nfs", "cifs", "smb", "ceph", "lustre", "gpfs", "beegfs", "9p", "afs", "gluster", "virtiofs")
"""Prefixes of the types of file systems that need a server."""


def thread_stat(pid: int, tid: int | str) -> tuple[str, str]:
    """(state letter, comm) of a thread: R, S, D, T, t, Z or X (proc_pid_stat(5)). Raises OSError: it has exited."""
    name, fields = split_stat(proc_files.line(f"/proc/{pid}/task/{tid}/stat"))
    return fields[:1], name


def thread_state(pid: int, tid: int | str) -> str:
    """The state letter of a thread. Raises OSError: it has exited."""
    return thread_stat(pid, tid)[0]


def parent(pid: int) -> int:
    """PID of the parent; 0 if process ``pid`` has exited."""
    try:
        return int(stat_fields(proc_files.read(f"/proc/{pid}/stat"))[1])
    except OSError:
        return 0


def process_name(pid: int) -> str:
    """The kernel's name of a process (comm), "unknown" if it has exited."""
    return status_fields(f"/proc/{pid}/status").get("Name", "unknown")


def is_killed_with_tracer(pid: int) -> bool:
    """The debugger that traces the process started it, and kills it when it exits (PTRACE_O_EXITKILL, ptrace(2))."""
    debugger = tracer(pid, pid)
    return debugger != 0 and debugger == parent(pid)


def thread_states(pid: int, skipped: Container[int] = ()) -> dict[int, str]:
    """Thread id → state letter, of all threads but the ``skipped``. Raises OSError: the process has exited."""
    return {tid: state for tid, (state, _) in thread_stats(pid, skipped).items()}


def thread_stats(pid: int, skipped: Container[int] = ()) -> dict[int, tuple[str, str]]:
    """Thread id → (state letter, comm), of all threads but the ``skipped``. Raises OSError: the process has exited."""
    stats = {}
    for name in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - strings are all that is needed
        if int(name) not in skipped:
            with suppress(OSError):
                stats[int(name)] = thread_stat(pid, name)
    return stats


def living_threads(pid: int, skipped: Container[int] = ()) -> set[int]:
    """Ids of the threads that have not exited, but the ``skipped``; none if the process has exited."""
    with suppress(OSError):
        return {tid for tid, state in thread_states(pid, skipped).items() if state not in "ZX"}
    return set()


def living_tid(pid: int) -> int:
    """Tid of a process's main thread, or of another one if that has left by pthread_exit(3): the files about the
    process's memory then work only in the folders of other threads (/proc/TID is not listed, but exists)."""
    with suppress(OSError):
        if thread_state(pid, pid) in ("Z", "X"):
            return min(living_threads(pid), default=pid)
    return pid


def check_process(pid: int) -> int:
    """Check that process ``pid`` can be stopped and read; its program's e_machine (elf.h). Raises NoSuchProcess,
    NotPermitted, ForeignArchitecture, TargetGone, TargetError (zombie, kernel thread, ourselves)."""
    check_exists(pid)
    check_not_traced(pid, pid)
    return check_readable(pid)


def check_readable(pid: int) -> int:
    """As ``check_process``, but the process may be traced: it can be read, and perhaps not stopped."""
    check_exists(pid)
    machine = check_architecture(pid)
    os.close(open_memory(pid))  # attaching needs the same permission (proc_pid_mem(5))
    return machine


def check_exists(pid: int) -> None:
    """Check that ``pid`` is a living process, and not this one or a mere thread. Raises NoSuchProcess, TargetError."""
    fields = status_fields(f"/proc/{pid}/status") if pid > 0 else {}
    if not fields:
        raise NoSuchProcess(f"there is no process {pid}")
    leader = int(fields.get("Tgid", pid))
    if leader != pid:
        raise NoSuchProcess(
            f"{pid} is not a process but a thread of process {leader}", why="", help=f"use: -p {leader}"
        )
    if pid == os.getpid():
        why, help = "a process cannot stop itself to be examined", "examine it from another process"
        raise TargetError(f"{pid} is this very process", why=why, help=help)
    # A main thread that called pthread_exit is a zombie while its process lives on.
    if fields.get("State", "")[:1] in ("Z", "X") and not living_threads(pid):
        parent = fields.get("PPid", "?")
        raise TargetError(
            f"process {pid} ({fields.get('Name', '?')}) is a zombie: it has exited and nothing of it is left to read",
            why=f"its parent, process {parent}, has not collected its exit status yet",
            help=f"examine the parent instead (-p {parent}), or a core dump of {pid} if one was written",
        )


def tracer(pid: int, tid: int) -> int:
    """PID of the process that traces a thread, 0 for none (TracerPid of proc_pid_status(5))."""
    return int(status_fields(f"/proc/{pid}/task/{tid}/status").get("TracerPid", 0) or 0)


def holder(pid: int) -> int:
    """PID of another process that traces ``pid`` and has stopped all of its threads; 0 for none. Waits a moment for one
    that holds it only briefly."""

    def is_held() -> bool:
        with suppress(OSError):  # it has exited
            return {state for state in thread_states(pid).values() if state not in "ZX"} == {"t"}
        return False

    return foreign_tracer(pid, None, is_held)


def foreign_tracer(pid: int, tid: int | None = None, matters: Callable[[], bool] = lambda: True) -> int:
    """PID of another process that traces a thread (None: the main one), which no other process can stop then; 0 for
    none, and if it does not matter. Waits a moment for one that traces it only briefly."""
    deadline = time.monotonic() + _TRACED_SECONDS
    while (other := tracer(pid, tid or pid)) not in (0, os.getpid()) and matters():
        if time.monotonic() >= deadline:
            return other
        time.sleep(_TRACED_PAUSE)
    return 0


def check_not_traced(pid: int, tid: int) -> None:
    """Raises NotPermitted if a debugger is attached to the thread. Waits a moment for one that holds it briefly."""
    if other := foreign_tracer(pid, tid):
        raise NotPermitted(
            f"process {pid} is already being traced by process {other} ({process_name(other)})",
            why="only one debugger can be attached at a time",
            help=f"detach there or kill it (kill {other}); if it is gdb, run: source gdbext/init.py   in it",
        )


def open_memory(pid: int) -> int:
    """An fd of /proc/PID/mem. Raises NotPermitted, TargetGone."""
    try:
        return os.open(f"/proc/{living_tid(pid)}/mem", os.O_RDONLY | os.O_CLOEXEC)
    except PermissionError:
        raise refusal(pid) from None
    except OSError as error:
        raise TargetGone.of(pid) from error


def refusal(pid: int) -> NotPermitted:
    """NotPermitted with the reasons as far as known: owner, ptrace_scope, capability, container."""
    reasons, remedies = [], []
    as_root = os.geteuid() == 0
    owner = status_fields(f"/proc/{pid}/status").get("Uid", "?").split()[0]
    if owner != str(os.geteuid()):
        reasons.append(f"it belongs to uid {owner} and you are uid {os.geteuid()}")
        if not as_root:
            remedies.append(f"run it as that user or as root: sudo scripts/dispatch -p {pid}")
    scope = number(file_text(PTRACE_SCOPE).strip()) or 0
    is_final = scope == 3  # no process may attach until the next boot (admin-guide/LSM/Yama.rst)
    if scope > 0:
        meaning = {1: "only a parent may attach", 2: "only root may attach", 3: "no process may attach"}
        reasons.append(f"{PTRACE_SCOPE} is {scope}: {meaning.get(scope, 'restricted')}")
        if is_final:
            remedies = ["only a reboot changes that"]
        elif not remedies and not as_root:
            lower = ", or allow all your processes to be examined: sudo sysctl kernel.yama.ptrace_scope=0"
            remedies.append(f"sudo scripts/dispatch -p {pid}{lower if scope == 1 else ''}")
    if not has_ptrace_capability():
        reasons.append("this process has no CAP_SYS_PTRACE")
        if as_root and not is_final:
            remedies.append(
                "give the container the capability (docker run --cap-add=SYS_PTRACE; Kubernetes: securityContext: "
                "capabilities: add: [SYS_PTRACE]), or run it on the host"
            )
    return NotPermitted(
        f"not permitted to examine process {pid}",
        why="; ".join(reasons) or "a security module, a user namespace or PR_SET_DUMPABLE forbids it",
        help="; ".join(remedies) or "run it on the host, outside of the container or sandbox",
    )


def has_ptrace_capability() -> bool:
    """We hold CAP_SYS_PTRACE (in our user namespace)."""
    effective = status_fields("/proc/self/status").get("CapEff", "0")
    return bool(int(effective, 16) >> CAP_SYS_PTRACE & 1)


def _is_kernel_thread(pid: int) -> bool:
    """PF_KTHREAD is set in the flags of proc_pid_stat(5): an exiting process has no program either."""
    flags = stat_fields(file_text(f"/proc/{pid}/stat"))[9 - 3 : 10 - 3]
    return bool((number("".join(flags)) or 0) & 0x200000)  # PF_KTHREAD (include/linux/sched.h)


def check_architecture(pid: int) -> int:
    """The e_machine of the program. Raises TargetError, TargetGone, NotPermitted, ForeignArchitecture."""
    try:
        with open(f"/proc/{living_tid(pid)}/exe", "rb") as file:
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
    identity = identify(header)
    if not identity:
        raise architectures.foreign(f"the program of process {pid} is not an ELF file")
    if not identity.is_ours or not architectures.supported(identity.machine):
        raise architectures.foreign(
            f"process {pid} runs a {identity.bits}-bit program (ELF machine {identity.machine})"
        )
    return identity.machine


def uses_servers(pid: int) -> bool:
    """The process has a file of a file system that needs a server open or mapped, or its program or current folder is
    there. Reads links and maps of /proc, which ask no server; reading the maps may block if a thread of the process is
    in uninterruptible sleep."""
    folders = tuple(f"{mount_point.rstrip('/')}/" for mount_point in served_mount_points(pid))
    return bool(folders) and any(f"{path}/".startswith(folders) for path in _paths_of(pid))


def served_mount_points(pid: int) -> list[str]:
    """The mount points of file systems that need a server, except the root: without that one nothing works at all."""
    return [
        mount.mount_point
        for mount in mounts(pid)
        if mount.type.startswith(SERVED_TYPES)
        and not mount.type.startswith(("fusectl", "fuse.lxcfs"))
        and (mount.root, mount.mount_point) != ("/", "/")
    ]


def _paths_of(pid: int) -> Iterator[str]:
    """The paths of a process's program, current folder, open files and mapped files."""
    folder = f"/proc/{living_tid(pid)}"
    for name in ("exe", "cwd", *(f"fd/{fd}" for fd in folder_names(f"{folder}/fd"))):
        yield link_target(f"{folder}/{name}")
    yield from re.findall("/.*", file_text(f"{folder}/maps", proc_files.TABLE))
