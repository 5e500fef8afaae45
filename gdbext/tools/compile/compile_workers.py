"""What threads, Inductor's workers and other processes compile, the jobs that a pool waits for, and the cache's lock
files."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.py_stack import PyStack
from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import briefly_stopped
from gdbext.errors import GdbextError
from gdbext.tools.compile.compiled_frames import is_compiler, stage
from gdbext.torch.compile import dynamo_names as names
from gdbext.torch.compile.compile_section import (
    CompileLock,
    CompilePool,
    CompilingProcess,
    CompilingThread,
    SourcePlace,
)

if TYPE_CHECKING:
    pass


def work_of_thread(tid: int, stack: PyStack) -> CompilingThread | None:
    """What the innermost call of a compiler compiles; None if there is none on the stack."""
    inner = next((index for index, frame in enumerate(stack) if is_compiler(frame)), None)
    if inner is None:
        return None
    part = stage(stack[: inner + 1])
    for frame in stack[inner:]:
        place = _compiled(stack, frame) if is_compiler(frame) else None
        if place:
            return CompilingThread(tid, part, place.function, place.file, place.line)
    return CompilingThread(tid, part, "", None, None)


def _compiled(stack: PyStack, frame: PythonFrame) -> SourcePlace | None:
    """What one call of a compiler compiles: TorchDynamo's frame, or Triton's kernel; None if its variables do not
    say, as in other releases."""
    if frame.file.endswith(names.COMPILER[0]):
        code = stack.locals(frame)[names.COMPILED_LOCAL].code
        return SourcePlace(code.name, code.file, code.first_line) if code else None
    if frame.file.endswith(names.TRITON_COMPILER[0]):  # the function behind its JITFunction, which its source has
        kernel = stack.locals(frame)[names.TRITON_SOURCE][names.TRITON_FUNCTION]
        function = kernel[names.TRITON_FUNCTION].function
        if function and function.file:
            return SourcePlace(function.qualname, function.file, function.line)
    return None


def work_of(pid: int) -> CompilingThread | None:
    """What a process compiles, which is stopped for some milliseconds; None for nothing, or if it cannot be read."""
    try:
        target = briefly_stopped(pid)
    except GdbextError:
        return None
    try:
        works = (work_of_thread(tid, stack) for tid, stack in python_stacks(Session(target)))
        return next((work for work in works if work), None)
    except GdbextError:
        return None
    finally:
        target.close()


def python_stacks(session: Session) -> Iterator[tuple[int, PyStack]]:
    """The Python frames of each thread; one that cannot be read is among the session's errors."""
    for thread in session.target.memory.threads():
        try:
            yield thread.tid, session.python_threads.frames(thread.tid)
        except GdbextError as error:
            session.errors.note(error, f"thread {thread.tid}")


def pool_of(tid: int, stack: PyStack) -> CompilePool | None:
    """The pool for whose results a thread waits; None for any other thread."""
    file, function = names.POOL_READER
    readers = (frame for frame in stack if frame.file.endswith(file) and frame.function.rpartition(".")[2] == function)
    reader = next(readers, None)
    if not reader:
        return None
    pool = stack.locals(reader)["self"]
    process, pending = pool[names.POOL_PROCESS]["pid"], pool[names.POOL_PENDING]
    jobs = pending.keys(100_000)
    if pending and jobs.fault:
        return None
    return CompilePool(tid, process.int(), len(jobs) if pending else None)


def compiling_processes(session: Session) -> tuple[CompilingProcess, ...]:
    """Children, and their children, that compile; none of a core. At most eight workers are stopped for some
    milliseconds, to see what they compile: those that do not wait for a job in futex(2)."""
    parents = session.procfs.descendants()
    processes = {pid: session.procfs.process(pid) for pid in parents}
    compilers = {
        pid: process
        for pid, process in processes.items()
        if process.name in names.COMPILERS or names.WORKER in process.command
    }
    reports: list[CompilingProcess] = []
    left = 8
    for pid, process in compilers.items():
        below = [child for child_pid, child in compilers.items() if parents[child_pid] == pid]
        doing = ", ".join([process.doing, *(f"started {child.name} {child.pid}" for child in below)])
        # A compiler's source is the last of its arguments that looks like one.
        pattern = r"\S+\.(?:cpp|cc|c|cu|ptx)(?= |$)"
        sources = re.findall(pattern, process.command) if process.name in names.COMPILERS else []
        source, command, work = sources[-1] if sources else "", process.command[:300], None
        if names.WORKER in command and process.call != "futex" and not process.ending and left:
            left -= 1
            work = work_of(pid)
        reports.append(CompilingProcess(pid, process.name, command, doing, parents[pid], source, work))
    return tuple(reports)


def compile_locks(session: Session) -> tuple[CompileLock, ...]:
    """The lock files that are open in this process or in one that compiles for it; none of a core."""
    procfs = session.procfs
    users: dict[str, list[int]] = {}
    for pid in (session.target.pid, *procfs.descendants()):
        for path in procfs.open_files(pid):
            if names.LOCK_FILE.search(path):
                users.setdefault(path, []).append(pid)
    locks = []
    for path, pids in sorted(users.items()):
        peer = procfs.file_lock(path)
        others = {process.pid for process in peer.processes} if peer else set()
        holders = others.union(pid for pid in pids if procfs.has_locked(pid, path))
        locks.append(CompileLock(path, tuple(sorted(pids)), tuple(sorted(holders))))
    return tuple(locks)
