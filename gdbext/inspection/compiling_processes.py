"""Processes that compile for a process, and the lock files of Inductor's cache that they and it have open."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gdbext.inspection.compile_workers import work_of
from gdbext.model.sections.compile_section import CompileLock, CompilingProcess
from gdbext.torch.compile import dynamo_names as names

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.threads.child_process import ChildProcess

_COMMAND = 300
"""Characters of a command line that are shown: compilers get long ones."""
_EXAMINED = 8
"""Workers that are stopped for some milliseconds, to see what they compile."""
_IDLE_CALL = "futex"
_SOURCE = re.compile(r"\S+\.(?:cpp|cc|c|cu|ptx)(?= |$)")


def compiling_processes(session: Session) -> tuple[CompilingProcess, ...]:
    """Children, and their children, that compile; none of a core."""
    procfs = session.procfs
    if procfs is None:
        return ()
    parents = procfs.descendants()
    processes = {pid: procfs.process(pid) for pid in parents}
    compiles = {pid: each for pid, each in processes.items() if _compiles(each)}
    found = []
    for pid, each in compiles.items():
        below = [process for child, process in compiles.items() if parents[child] == pid]
        doing = ", ".join([each.doing, *(f"started {child.name} {child.pid}" for child in below)])
        source, command = _source(each), each.command[:_COMMAND]
        found.append(CompilingProcess(pid, each.name, command, doing, parents[pid], source))
    return tuple(_with_work(found, processes))


def _with_work(found: list[CompilingProcess], processes: Mapping[int, ChildProcess]) -> Iterator[CompilingProcess]:
    """With what the workers compile: one that sleeps in futex(2) waits for a job."""
    left = _EXAMINED
    for each in found:
        process = processes[each.pid]
        if names.WORKER in each.command and process.call != _IDLE_CALL and not process.ending and left:
            left -= 1
            yield each._replace(work=work_of(each.pid))
        else:
            yield each


def _compiles(process: ChildProcess) -> bool:
    return process.name in names.COMPILERS or names.WORKER in process.command


def _source(process: ChildProcess) -> str:
    """The file that a compiler compiles: the last of its arguments that looks like one."""
    found = _SOURCE.findall(process.command) if process.name in names.COMPILERS else []
    return str(found[-1]) if found else ""


def compile_locks(session: Session) -> tuple[CompileLock, ...]:
    """The lock files that are open in this process or in one that compiles for it; none of a core."""
    procfs = session.procfs
    if procfs is None:
        return ()
    users: dict[str, list[int]] = {}
    for pid in (session.target.pid, *procfs.descendants()):
        for path in procfs.open_files(pid):
            if names.LOCK_FILE.search(path):
                users.setdefault(path, []).append(pid)
    locks = []
    for path, pids in sorted(users.items()):
        peer = procfs.file_lock(path)
        others = {each.pid for each in peer.processes} if peer is not None else set()
        holders = others.union(pid for pid in pids if procfs.has_locked(pid, path))
        locks.append(CompileLock(path, tuple(sorted(pids)), tuple(sorted(holders))))
    return tuple(locks)
