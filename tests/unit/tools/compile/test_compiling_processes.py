"""Which processes compile, for whom, and who holds the lock files of Inductor's cache."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gdbext.engine.targets.system.peer import ChildProcess
from gdbext.tools.compile.compile_workers import compile_locks, compiling_processes
from gdbext.torch.compile.compile_section import CompileLock, CompilingProcess, CompilingThread

LOCK = "/cache/locks/cab.lock"
WORKER = "python -m torch._inductor.compile_worker --kind=fork torch/_inductor/compile_worker/__main__.py"
PROCESSES = {
    11: ChildProcess(11, "python", command=WORKER, call="read"),
    12: ChildProcess(12, "g++", command="g++ /cache/ab/cab.cpp -O3 -o /cache/ab/cab.so", call="wait4"),
    13: ChildProcess(13, "cc1plus", command="cc1plus -quiet cab.cpp -o /tmp/x.s"),
    14: ChildProcess(14, "sleep", command="sleep 9"),
    99: ChildProcess(99, "python", command="python other.py"),
}


class Proc:
    """What the system says of them."""

    def descendants(self) -> dict[int, int]:
        return {11: 7, 14: 7, 12: 11, 13: 12}

    def process(self, pid: int) -> ChildProcess:
        return PROCESSES[pid]

    def open_files(self, pid: int) -> set[str]:
        return {"/dev/null", LOCK} if pid in (7, 12) else {"pipe:[1]", "/else/locks"}

    def file_lock(self, path: str) -> Any:
        assert path == LOCK
        return SimpleNamespace(processes=(PROCESSES[99],))

    def has_locked(self, pid: int, path: str) -> bool:
        return (pid, path) == (12, LOCK)


SESSION: Any = SimpleNamespace(procfs=Proc(), target=SimpleNamespace(pid=7))
WORK = CompilingThread(11, "Triton", "triton_poi_fused_add_0", "/cache/x.py", 4)


@pytest.fixture(autouse=True)
def works(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The processes whose stacks were asked for."""
    asked: list[int] = []

    def work_of(pid: int) -> CompilingThread | None:
        asked.append(pid)
        return WORK if pid == 11 else None

    monkeypatch.setattr("gdbext.tools.compile.compile_workers.work_of", work_of)
    return asked


def test_compilers_and_workers_with_what_they_compile() -> None:
    assert compiling_processes(SESSION) == (
        CompilingProcess(11, "python", WORKER, "in read, started g++ 12", 7, "", WORK),
        CompilingProcess(12, "g++", PROCESSES[12].command, "in wait4, started cc1plus 13", 11, "/cache/ab/cab.cpp"),
        CompilingProcess(13, "cc1plus", PROCESSES[13].command, "runs", 12, "cab.cpp"),
    )


def test_workers_that_wait_for_a_job_are_left_alone_and_of_many_only_some_are_stopped(
    works: list[int],
) -> None:
    calls = {pid: "futex" if pid < 105 else "wait4" for pid in range(100, 130)}
    many = {pid: ChildProcess(pid, "python", command=WORKER, call=call) for pid, call in calls.items()}
    procfs = SimpleNamespace(descendants=lambda: dict.fromkeys(many, 7), process=many.__getitem__)
    session: Any = SimpleNamespace(procfs=procfs, target=SimpleNamespace(pid=7))
    assert len(compiling_processes(session)) == 30
    assert works == list(range(105, 113))


def test_lock_files_with_who_has_them_open_and_who_holds_them() -> None:
    assert compile_locks(SESSION) == (CompileLock(LOCK, (7, 12), (12, 99)),)
    core: Any = SimpleNamespace(procfs=None)
    assert (compiling_processes(core), compile_locks(core)) == ((), ())
