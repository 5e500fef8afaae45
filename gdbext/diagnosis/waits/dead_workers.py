"""Worker processes that were killed while others hold their pipes open: their death goes unnoticed, and what they were
to deliver does not come.

A pool notices the end of a worker by the end of a pipe, its sentinel (multiprocessing/popen_fork.py, 3.8 to 3.15); a
reader notices it by the end of the pipe that it reads. A process that the worker has started inherits copies of both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.report.wait_detail import Polled
from gdbext.diagnosis.report.wait_kind import Loss, LostThread
from gdbext.engine.targets.system.peer import ProcessState, listed
from gdbext.engine.vocabulary import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gdbext.cpython.sync.helper_threads import WorkerProcess
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.engine.targets.system.peer import ChildProcess, Peer


def lost_worker(process: ProcessSnapshot, pids: Collection[int], at_work: bool) -> LostThread | None:
    """The dead ones among a pool's workers ``pids``, if the pool cannot notice it. None if there are none, or one that
    lives may have the job: ``at_work``, the living ones do something else than wait for jobs."""
    if not process.procfs:
        return None
    dead = [worker for worker in process.python.started_processes() if worker.pid in pids and _is_dead(process, worker)]
    if not dead or at_work:
        return None
    for worker in dead:
        holders = process.procfs.peers.writers_of(process.procfs.descriptor(worker.sentinel))
        if holders:
            child = process.procfs.children().get(worker.pid)
            how = f", {child.ending}" if child and child.ending else ""
            text = f"its worker {worker.pid} ({worker.name}{how}) is dead{_oom_clause(process, child)}"
            clause = f"{text}, and the pool does not notice: {_holders_clause(holders)}"
            return LostThread((), Loss.KILLED, no_waker_clause=clause, recorded=True)
    return None


def _is_dead(process: ProcessSnapshot, worker: WorkerProcess) -> bool:
    """True if the worker is a zombie, or no process any more; the latter only if the program counts PIDs as we do."""
    main = process.thread(process.pid)
    if worker.parent != process.pid or not main or main.own_tid != process.pid:
        return False
    child = process.procfs.children().get(worker.pid)
    return child.state is ProcessState.ENDED if child else process.procfs.is_no_process(worker.pid)


def polled_pool(thread: ThreadSnapshot) -> Polled | None:
    """The pool that a loop's code can reach, if it has jobs and its workers are dead or idle; None otherwise."""
    process = thread.process
    if not process.procfs or not any(_is_dead(process, worker) for worker in process.python.started_processes()):
        return None
    for pool in process.python.process_pools(thread.tid):
        workers = process.processes(pool.pids)
        living = [worker for worker in workers if not worker.ending]
        at_work = any(worker.call not in _IDLE_CALLS for worker in living)
        lost = lost_worker(process, pool.pids, at_work)
        if lost:
            return Polled(None, lost, f"{counted(pool.jobs, 'job')} of a {pool.kind}")
    return None


_IDLE_CALLS = ("read", "futex", "poll")
"""The system calls of workers that wait for jobs: one reads the queue, or polls it, the others wait for their turn."""


def lost_writer(process: ProcessSnapshot, peers: Sequence[Peer | None]) -> LostThread | None:
    """The child process that was to write into the only pipe or socket that a thread waits for, if a signal has killed
    it, and only processes that are sleeping orphans have the other end: none is a descendant of this process, and each
    began after the child."""
    peer = peers[0] if len(peers) == 1 else None
    if not peer or not peer.processes or peer.address or not process.procfs:
        return None
    killed = [child for child in process.procfs.children().values() if child.is_killed]
    if not killed:
        return None
    family = process.procfs.descendants()
    begins = [process.procfs.start_ticks(holder.pid) for holder in peer.processes]
    first = min((begin for begin in begins if begin is not None), default=None)
    if first is None or None in begins or any(holder.pid in family or not holder.call for holder in peer.processes):
        return None
    older = [child for child in killed if (process.procfs.start_ticks(child.pid) or first + 1) <= first]
    if not older:
        return None
    names = " or ".join(f"{child.pid} ({child.name}, {child.ending})" for child in older[:4])
    text = f"its child process {names} is dead{_oom_clause(process, older[0])}"
    return LostThread((), Loss.KILLED, no_waker_clause=f"{text}; {_holders_clause(peer.processes)}")


def _holders_clause(holders: Sequence[ChildProcess]) -> str:
    """``26876 (sleep), its orphan, holds its pipe open``."""
    is_one = len(holders) == 1
    return f"{listed(holders, 4)}, its orphan{'' if is_one else 's'}, hold{'s' if is_one else ''} its pipe open"


def _oom_clause(process: ProcessSnapshot, child: ChildProcess | None) -> str:
    """`` (its cgroup counts 1 OOM kill)`` for a process that SIGKILL has ended; else ""."""
    kills = process.procfs.machine.oom_kills() if child and child.ending == "killed by SIGKILL" else 0
    return f" (its cgroup counts {counted(kills, 'OOM kill')})" if kills else ""
