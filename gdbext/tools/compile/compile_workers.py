"""Inductor's workers: what each of them compiles, by its own Python stack, and how many jobs a pool waits for.

What a thread that is in a compiler compiles: TorchDynamo's frame, or Triton's kernel.

Processes that compile for a process, and the lock files of Inductor's cache that they and it have open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.py_stack import PyStack
from gdbext.diagnosis.session import Session
from gdbext.engine.glibc.pthread import brief_look
from gdbext.errors import GdbextError
from gdbext.tools.compile.compiled_frames import is_compiler, stage
from gdbext.torch.compile import compile_section
from gdbext.torch.compile import dynamo_names as names

if TYPE_CHECKING:
    from gdbext.engine.targets.system.peer import ChildProcess


def at_work(tid: int, stack: PyStack) -> compile_section.CompilingThread | None:
    """The work of the innermost call of a compiler; None where there is none on the stack."""
    inner = next((index for index, frame in enumerate(stack) if is_compiler(frame)), None)
    if inner is None:
        return None
    part = stage(stack[: inner + 1])
    for frame in stack[inner:]:
        found = _compiled(stack, frame) if is_compiler(frame) else None
        if found:
            return compile_section.CompilingThread(tid, part, found.function, found.file, found.line)
    return compile_section.CompilingThread(tid, part, "", None, None)


def _compiled(stack: PyStack, frame: PythonFrame) -> compile_section.SourcePlace | None:
    """The work of one call of a compiler, as far as its variables say: those of another release say nothing."""
    if frame.file.endswith(names.COMPILER[0]):
        code = stack.locals(frame)[names.COMPILED_LOCAL].code
        return compile_section.SourcePlace(code.name, code.file, code.first_line) if code else None
    if frame.file.endswith(names.TRITON_COMPILER[0]):  # the function behind its JITFunction, which its source has
        kernel = stack.locals(frame)[names.TRITON_SOURCE][names.TRITON_FUNCTION]
        found = kernel[names.TRITON_FUNCTION].function
        if found and found.file:
            return compile_section.SourcePlace(found.qualname, found.file, found.line)
    return None


_PENDING = 100_000


def work_of(pid: int) -> compile_section.CompilingThread | None:
    """The work of a process that compiles, which stands still for some milliseconds for it; None where it compiles
    nothing, or cannot be read."""
    try:
        target = brief_look(pid)
    except GdbextError:
        return None
    try:
        return next(_works(Session(target)), None)
    except GdbextError:
        return None
    finally:
        target.close()


def _works(session: Session) -> Iterator[compile_section.CompilingThread]:
    return (found for tid, stack in python_stacks(session) if (found := at_work(tid, stack)))


def python_stacks(session: Session) -> Iterator[tuple[int, PyStack]]:
    """The Python frames of each thread; one that cannot be read is among the session's errors."""
    for thread in session.target.memory.threads():
        try:
            yield thread.tid, session.python_threads.frames(thread.tid)
        except GdbextError as error:
            session.errors.note(error, f"thread {thread.tid}")


def pool_of(tid: int, stack: PyStack) -> compile_section.CompilePool | None:
    """The pool for whose results a thread waits; None for any other thread."""
    file, function = names.POOL_READER
    readers = (each for each in stack if each.file.endswith(file) and each.function.rpartition(".")[2] == function)
    reader = next(readers, None)
    if not reader:
        return None
    pool = stack.locals(reader)["self"]
    process, pending = pool[names.POOL_PROCESS]["pid"], pool[names.POOL_PENDING]
    jobs = pending.keys(_PENDING)
    if pending and jobs.fault:
        return None
    return compile_section.CompilePool(tid, process.int(), len(jobs) if pending else None)


_COMMAND = 300
"""Characters of a command line that are shown: compilers get long ones."""
_EXAMINED = 8
"""Workers that are stopped for some milliseconds, to see what they compile."""
_IDLE_CALL = "futex"
_SOURCE = re.compile(r"\S+\.(?:cpp|cc|c|cu|ptx)(?= |$)")


def compiling_processes(session: Session) -> tuple[compile_section.CompilingProcess, ...]:
    """Children, and their children, that compile; none of a core."""
    procfs = session.procfs
    parents = procfs.descendants()
    processes = {pid: procfs.process(pid) for pid in parents}
    compiles = {pid: each for pid, each in processes.items() if _compiles(each)}
    found = []
    for pid, each in compiles.items():
        below = [process for child, process in compiles.items() if parents[child] == pid]
        doing = ", ".join([each.doing, *(f"started {child.name} {child.pid}" for child in below)])
        source, command = _source(each), each.command[:_COMMAND]
        found.append(compile_section.CompilingProcess(pid, each.name, command, doing, parents[pid], source))
    return tuple(_with_work(found, processes))


def _with_work(
    found: list[compile_section.CompilingProcess], processes: Mapping[int, ChildProcess]
) -> Iterator[compile_section.CompilingProcess]:
    """The processes with what the workers compile: one that sleeps in futex(2) waits for a job."""
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


def compile_locks(session: Session) -> tuple[compile_section.CompileLock, ...]:
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
        others = {each.pid for each in peer.processes} if peer else set()
        holders = others.union(pid for pid in pids if procfs.has_locked(pid, path))
        locks.append(compile_section.CompileLock(path, tuple(sorted(pids)), tuple(sorted(holders))))
    return tuple(locks)
