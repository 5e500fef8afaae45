"""Waits for Python's own locks, and for what ``threading``, ``queue`` and ``concurrent.futures`` build on them.

All of them sleep in PyThread_acquire_lock_timed, on a semaphore without an owner. What it means, and who has to act,
is in the Python frames and objects (cpython/sync/python_wait.py). A plain Lock records no owner; a thread that
is inside ``with lock:`` and does not wait for it holds it.

The holder of a lock that records none follows from the ``with`` and ``try`` blocks of all threads, or from a fork.
Worker processes owe the results of multiprocessing.Pool and ProcessPoolExecutor.

A thread that should act may not be there: it has ended, was left behind by a fork, or never began. What the objects
themselves record is certain: the helpers of a pool, the workers of an executor, the thread that Thread.start() waits
for. Else it is concluded: some functions of the program could end the wait, no thread is in one of them, and threads
have ended (cpython/sync/waker_search.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, ParentsThread, VanishedThread, Wait
from gdbext.diagnosis.report.wait_detail import OtherEnd, Owned, Polled, Unowned
from gdbext.diagnosis.report.wait_kind import Loss, LostThread, SelfWait, WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.pool_workers import python_pool_of
from gdbext.diagnosis.waits.snapshot import FutexWait, ThreadSnapshot, fork_evidence, sleepers
from gdbext.engine.glibc.pthread import was_thread
from gdbext.engine.targets.system.peer import ChildProcess, listed
from gdbext.engine.vocabulary import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.cpython.sync.helper_threads import PoolHelper, ThreadObject
    from gdbext.cpython.sync.python_wait import PythonWait
    from gdbext.cpython.sync.waker_search import PossibleWakers, WakingFunction

_INTERRUPTIONS = (
    (FunctionTag.RUNS_SIGNAL_HANDLERS, SelfWait.SIGNAL),
    (FunctionTag.RUNS_WEAKREF_CALLBACKS, SelfWait.WEAKREF),
    (FunctionTag.RUNS_FINALIZERS, SelfWait.FINALIZER),
)


def with_owner(thread: ThreadSnapshot, futex: FutexWait, resource: Resource, evidence: str) -> Wait:
    """The wait for a lock that is taken, with its owner where one can be told."""
    python = thread.process.python
    for tids, how in (
        (python.inside_with(futex.address), "is inside a with statement of this lock"),
        (python.likely_holders(futex.address, thread.tid), "has this lock at hand in a try block that may release it"),
    ):
        holder = _only_holder(thread, tids, futex.address)
        if holder is not None:
            seen = (evidence, f"thread {holder} {how}")
            reason = interruption(thread) if holder == thread.tid else None
            return Wait(
                resource, OwnerThread(holder), OwnerCertainty.INFERRED, futex.timed, seen, Owned(self_wait=reason)
            )
    if python.has_taken(thread.tid, futex.address):
        seen = (evidence, "it has called acquire() before, and no other thread has this lock at hand")
        mine = OwnerThread(thread.tid)
        return Wait(resource, mine, OwnerCertainty.INFERRED, futex.timed, seen, Owned(self_wait=interruption(thread)))
    forked = fork_evidence(thread.process) if len(thread.process.tids) == 1 else ()
    if forked:
        alone = "this process has one thread, and no frame of it holds the lock"
        return Wait(resource, ParentsThread(), OwnerCertainty.INFERRED, futex.timed, (evidence, alone, *forked))
    return Wait(resource, timed=futex.timed, evidence=(evidence,))


def _only_holder(thread: ThreadSnapshot, tids: Sequence[int], address: int) -> int | None:
    """The only thread that can be the holder, None where there is not just one; another thread rather than itself."""
    inside = set(tids)
    holders = inside - {thread.tid} - sleepers(thread.process).get(address, set())
    holders = holders or inside & {thread.tid}
    return next(iter(holders)) if len(holders) == 1 else None


def interruption(thread: ThreadSnapshot) -> SelfWait | None:
    """The interruption of the thread's own code, by the functions and Python frames on its stack."""
    if any(frame.function.rpartition(".")[2] == "__del__" for frame in thread.python):
        return SelfWait.FINALIZER
    found = next((reason for tag, reason in _INTERRUPTIONS if tag in thread.inner_tags), None)
    if not found and thread.process.python.in_signal_handler(thread.tid):
        return SelfWait.SIGNAL  # without symbols, the function of C that calls handlers has no name
    return found


def for_result(thread: ThreadSnapshot, found: PythonWait, name: str, timed: bool, evidence: str) -> Wait:
    """The wait for the workers that owe the result ``found`` is about, or for the thread that the pool needs for it."""
    known = thread.process.procfs.children()
    workers = tuple(known.get(pid, ChildProcess(pid)) for pid in found.pids)
    at_work = bool(workers) and not all_idle(workers)
    ended = (each for each in found.helpers if each.thread.has_ended)
    lost = next((each for each in ended if not (each.only_replaces and at_work)), None)
    if lost or found.lacks_workers:
        gone = _lost_helper(thread, lost.thread, lost.does) if lost else NO_WORKERS
        resource = Resource(WaitKind.CONDVAR, found.address, name)
        return Wait(resource, timed=timed, evidence=(evidence,), detail=Unowned(gone))
    if not workers:  # they are threads: those that run a job, of whichever pool
        running = [each.tid for each in thread.process.threads if each is not thread and _runs_job(each)]
        owner = OwnerThread(running[0]) if len(running) == 1 else None
        certainty = OwnerCertainty.INFERRED if owner else OwnerCertainty.UNKNOWN
        several = f", which one of the threads {', '.join(map(str, running))} must deliver" if running[1:] else ""
        return Wait(Resource(WaitKind.CONDVAR, found.address, f"{name}{several}"), owner, certainty, timed, (evidence,))
    plural = "es" if len(workers) > 1 else ""
    text = f"{name}, which the worker process{plural} {listed(workers)} must deliver"
    held_up = _held_up(thread, found) if all_idle(workers) else None
    if held_up:
        seen = (evidence, f"every worker waits for work, and thread {held_up.tid}, which {held_up.does}, does not")
        owed = Resource(WaitKind.CONDVAR, found.address, name)
        helper = OwnerThread(held_up.tid) if held_up.tid is not None else None
        return Wait(owed, helper, OwnerCertainty.INFERRED, timed, seen)
    if all_idle(workers):
        text += "; but every worker waits for work: the job is lost with a worker that ended, and no result will come"
    resource = Resource(WaitKind.CHILD_PROCESS, found.address, text)
    return Wait(resource, timed=timed, evidence=(evidence,), detail=OtherEnd(children=workers))


def _runs_job(thread: ThreadSnapshot) -> bool:
    """The thread is a worker of a multiprocessing.pool.ThreadPool, inside of a job (``worker`` of Lib/multiprocessing/
    pool.py calls it; between two jobs it takes one from a SimpleQueue)."""
    calls = [(frame.file.endswith("multiprocessing/pool.py"), frame.function) for frame in thread.python]
    futex, python = thread.futex, thread.process.python
    if calls[:1] != [(True, "worker")] or not futex or not python:
        return (True, "worker") in calls
    found = python.wait(thread.tid, futex.address)  # the job may be a function of C
    return found is not None and found.kind is not Waitable.SIMPLE_QUEUE


NO_WORKERS = LostThread(
    (),
    Loss.ENDED,
    nobody="its ProcessPoolExecutor has no worker process left, as after max_tasks_per_child, and "
    "nobody starts another",
    recorded=True,
)


def _lost_helper(thread: ThreadSnapshot, helper: ThreadObject, does: str) -> LostThread:
    return LostThread((helper.name,), loss_of(thread, (helper,)), recorded=True, does=does)


def _held_up(thread: ThreadSnapshot, found: PythonWait) -> PoolHelper | None:
    """The helper of the pool that is neither idle nor at work on what it should do; none of one that only looks after
    the workers."""
    for helper in found.helpers:
        other = thread.process.thread(helper.tid) if helper.tid is not None else None
        if other and other.futex and not python_pool_of(other):
            return helper
    return None


def all_idle(workers: Sequence[ChildProcess]) -> bool:
    """No worker has a job: one reads from the pool's pipe, the others wait for their turn to read."""
    readers = [each for each in workers if each.reads_from_us]
    return bool(readers) and all(each.reads_from_us or each.call == "futex" for each in workers)


_NEAR = 7
"""Frames between the kernel and PyThread_acquire_lock_timed."""


class _Meaning(NamedTuple):
    kind: WaitKind
    name: str = ""
    set_by_handlers: bool = False


_MEANINGS = {
    Waitable.LOCK: _Meaning(WaitKind.PYTHON_LOCK, "threading.Lock"),
    Waitable.RLOCK: _Meaning(WaitKind.PYTHON_LOCK, "threading.RLock"),
    Waitable.IMPORT: _Meaning(WaitKind.PYTHON_LOCK, "import lock of a module"),
    Waitable.CONDITION: _Meaning(WaitKind.CONDVAR, "threading.Condition", set_by_handlers=True),
    Waitable.EVENT: _Meaning(WaitKind.CONDVAR, "threading.Event", set_by_handlers=True),
    Waitable.SEMAPHORE: _Meaning(WaitKind.SEMAPHORE, "threading.Semaphore"),
    Waitable.BARRIER: _Meaning(WaitKind.BARRIER, "threading.Barrier"),
    Waitable.QUEUE: _Meaning(WaitKind.QUEUE, "queue.Queue"),
    Waitable.SIMPLE_QUEUE: _Meaning(WaitKind.QUEUE, "queue.SimpleQueue", set_by_handlers=True),
    Waitable.FUTURE: _Meaning(WaitKind.CONDVAR, "concurrent.futures.Future"),
    Waitable.POOL_RESULT: _Meaning(WaitKind.CONDVAR, "a result of multiprocessing.Pool"),
    Waitable.THREAD: _Meaning(WaitKind.JOIN),
    Waitable.SHUTDOWN: _Meaning(WaitKind.JOIN, "all threads that are not daemons (the interpreter is shutting down)"),
}
"""Every Waitable, and the wait for it."""


def classify(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that sleeps on a lock made by Python, None for any other."""
    futex = thread.futex
    if not futex or thread.first(FunctionTag.PYTHON_LOCK, within=_NEAR) is None:
        return None
    found, python = _classified(thread, futex), thread.process.python
    if not found or found.kind is not WaitKind.PYTHON_LOCK:
        return found
    variable = python.variable_of(thread.tid, found.resource.address)
    resource = Resource(found.kind, found.address, found.name, variable)
    detail = found.detail
    if isinstance(found.owner, OwnerThread):
        detail = Owned(python.where_taken(futex.address, found.owner.tid), self_wait=detail.self_wait)
    return found._replace(resource=resource, detail=detail)


def _classified(thread: ThreadSnapshot, futex: FutexWait) -> Wait | None:
    found = thread.process.python.wait(thread.tid, futex.address)
    raw = thread.process.memory.try_read(futex.address, 4)
    free = any(raw)
    if not found:
        return _plain_lock(thread, futex, futex.address, "", free)
    meaning = _MEANINGS[found.kind]
    if meaning.kind is WaitKind.PYTHON_LOCK or found.reacquiring:
        return _lock(thread, futex, found, free)
    evidence = f"Python frame {found.frame.function}: {found.kind.value} at {found.address:#x}"
    if meaning.kind is WaitKind.JOIN:
        return _join(thread.tid, futex, found, meaning.name, evidence)
    if (found.pids or found.helpers or found.lacks_workers) and not free:
        return for_result(thread, found, meaning.name, futex.timed, evidence)
    name = ": ".join(filter(None, (meaning.name, found.lacks)))
    resource = Resource(meaning.kind, found.address, name)
    owed = None if free else _owed(thread, found, resource, futex, evidence)
    if owed:
        return owed
    return Wait(
        resource,
        timed=futex.timed,
        evidence=(evidence,),
        being_released=free,
        detail=Unowned(expects=found.awaited, set_by_handlers=meaning.set_by_handlers),
    )


def _owed(
    thread: ThreadSnapshot, found: PythonWait, resource: Resource, futex: FutexWait, evidence: str
) -> Wait | None:
    """The wait for something that one thread is known to owe: a semaphore, or the result of a job; else None."""
    python = thread.process.python
    inside = python.inside_object(found.address) if resource.kind is WaitKind.SEMAPHORE else ()
    if len(inside) == 1:
        seen = f"thread {inside[0]} is inside a with statement of it"
        return Wait(resource, OwnerThread(inside[0]), OwnerCertainty.INFERRED, futex.timed, (evidence, seen))
    if found.kind is Waitable.FUTURE and found.owner_tid is not None:
        job = f"thread {found.owner_tid} runs its job"
        return Wait(resource, OwnerThread(found.owner_tid), OwnerCertainty.RECORDED, futex.timed, (evidence, job))
    if found.exhausted:
        return _in_exhausted_pool(thread, found, resource, futex, evidence)
    loop = python.loop_owing(found.address) if found.kind is Waitable.FUTURE else None
    return _from_loop(thread, loop, resource, futex, evidence) if loop is not None else None


def _in_exhausted_pool(
    thread: ThreadSnapshot, found: PythonWait, resource: Resource, futex: FutexWait, evidence: str
) -> Wait:
    """Each worker of the pool waits for a job that no worker is left to run."""
    count = len(found.exhausted)
    workers = "the only worker" if count == 1 else f"each of the {count:,} workers"
    why = f"its job is pending, and {workers} of the pool waits for such a job"
    others = [tid for tid in found.exhausted if tid != thread.tid]
    if not others:
        mine = OwnerThread(thread.tid)
        return Wait(
            resource, mine, OwnerCertainty.RECORDED, futex.timed, (evidence, why), Owned(self_wait=SelfWait.POOL)
        )
    owners = tuple(map(OwnerThread, others))
    return Wait(resource, owners[0], OwnerCertainty.RECORDED, futex.timed, (evidence, why), others=owners[1:])


def _from_loop(thread: ThreadSnapshot, loop: int, resource: Resource, futex: FutexWait, evidence: str) -> Wait:
    """The event loop of thread ``loop`` has to complete the future."""
    own = loop == thread.tid
    owed = f"a callback or a task of the event loop of {'this very thread' if own else f'thread {loop}'} completes it"
    detail = Owned(self_wait=SelfWait.EVENT_LOOP if own else None)
    return Wait(resource, OwnerThread(loop), OwnerCertainty.RECORDED, futex.timed, (evidence, owed), detail)


def _lock(thread: ThreadSnapshot, futex: FutexWait, found: PythonWait, free: bool) -> Wait:
    lock = found.lock
    address = lock.address if lock and found.kind is not Waitable.IMPORT else found.address
    name = _MEANINGS[_lock_kind(found)].name
    ident = found.owner_ident if found.owner_ident is not None else (lock.owner_ident if lock else None)
    if ident is None:
        return _plain_lock(thread, futex, address, name, free)
    resource = Resource(WaitKind.PYTHON_LOCK, address, name)
    tid = found.owner_tid if found.owner_tid is not None else (lock.owner_tid if lock else None)
    evidence = f"{name} {address:#x} records its owner: thread ident {ident:#x}"
    if free:
        return Wait(resource, being_released=True, evidence=(evidence, "it is free now"))
    if tid is None:
        return _of_no_thread(thread, futex, resource, ident, evidence)
    return Wait(resource, OwnerThread(tid), OwnerCertainty.RECORDED, futex.timed, (evidence,))


_FIRST_PAGE = 1 << 12
"""Bytes at address 0 that are never mapped (vm.mmap_min_addr)."""


def _of_no_thread(thread: ThreadSnapshot, futex: FutexWait, resource: Resource, ident: int, evidence: str) -> Wait:
    """No thread could be found that has the owner's ident: it is gone only where each of them was looked at, and
    recorded only where a thread has had that ident: one damaged word names no thread."""
    python, memory = thread.process.python, thread.process.memory
    if ident % 8 or not _FIRST_PAGE <= ident < memory.architecture.user_limit:
        return Wait(resource, timed=futex.timed, evidence=(evidence, "no thread can have that ident: it is damaged"))
    if not python.has_no_thread(ident):
        return Wait(resource, timed=futex.timed, evidence=(evidence, "which thread has that ident could not be read"))
    certainty, history = OwnerCertainty.INFERRED, "nothing shows that one ever had it"
    if was_thread(memory, ident):
        certainty, history = OwnerCertainty.RECORDED, f"one had it: its block is at {ident:#x}"
    seen = (evidence, f"no thread has that ident, and {history}")
    return Wait(resource, VanishedThread(0, ident), certainty, futex.timed, seen)


def _lock_kind(found: PythonWait) -> Waitable:
    """The kind of lock behind the wait, also where a condition takes its lock back."""
    if found.kind is Waitable.IMPORT:
        return found.kind
    recursive = found.kind is Waitable.RLOCK or (found.lock is not None and found.lock.kind is Waitable.RLOCK)
    return Waitable.RLOCK if recursive else Waitable.LOCK


def _plain_lock(thread: ThreadSnapshot, futex: FutexWait, address: int, name: str, free: bool) -> Wait:
    resource = Resource(WaitKind.PYTHON_LOCK, address, name)
    evidence = f"semaphore {futex.address:#x} of a Python lock, which records no owner"
    if free:
        return Wait(resource, being_released=True, evidence=(evidence, "it is free now"))
    return with_owner(thread, futex, resource, evidence)


def _join(tid: int, futex: FutexWait, found: PythonWait, name: str, evidence: str) -> Wait:
    if found.owner_tid is None:
        resource = Resource(WaitKind.JOIN, found.address, name or "a Python thread")
        owners = tuple(OwnerThread(each) for each in found.awaited if each != tid)
        if not owners:
            return Wait(resource, timed=futex.timed, evidence=(evidence,))
        return Wait(resource, owners[0], OwnerCertainty.RECORDED, futex.timed, (evidence,), others=owners[1:])
    resource = Resource(WaitKind.JOIN, found.address, f"thread {found.owner_tid}")
    return Wait(resource, OwnerThread(found.owner_tid), OwnerCertainty.RECORDED, futex.timed, (evidence,))


_SHOWN = 3


def who_ends(thread: ThreadSnapshot, wait: Wait, known: Unowned, expects: tuple[int, ...]) -> Unowned:
    """The thread that should end the wait and is not there, or those that may end it by the functions that they are in;
    else those that have its object at hand, ``expects``."""
    futex = thread.futex
    found = thread.process.python.wait(thread.tid, futex.address) if futex else None
    lost = known.lost
    if found and not lost and not wait.external and not found.awaited:
        lost = _recorded(thread, found)
        lost, expects = (lost, ()) if lost else _concluded(thread, found, wait, expects)
    return Unowned(lost, known.repeated_at, known.lost_signal, expects, known.set_by_handlers, known.mutex)


def _recorded(thread: ThreadSnapshot, found: PythonWait) -> LostThread | None:
    python = thread.process.python
    unborn = python.never_began(found)
    if unborn:
        return LostThread((unborn.name,), Loss.NEVER_BEGAN, recorded=True)
    helpers = python.lost_executor(thread.tid, found.address) if found.kind.is_future else None
    if not helpers:
        return None
    if not helpers.threads:
        return LostThread((), Loss.ENDED, nobody=f"no thread {helpers.does}", recorded=True)
    names = tuple(each.name for each in helpers.threads)
    return LostThread(names, loss_of(thread, helpers.threads), recorded=True, does=helpers.does)


def loss_of(thread: ThreadSnapshot, threads: Sequence[ThreadObject]) -> Loss:
    """The way in which threads that do not run were lost. A thread whose id is lower than that of its own process was
    made in the parent: ids grow."""
    own = next((each.own_tid for each in thread.process.threads if each.tid == thread.process.pid), None)
    older = own is not None and all(0 < each.native_id < own for each in threads)
    return Loss.LEFT_BEHIND if older and fork_evidence(thread.process) else Loss.ENDED


def _concluded(
    thread: ThreadSnapshot, found: PythonWait, wait: Wait, expects: tuple[int, ...]
) -> tuple[LostThread | None, tuple[int, ...]]:
    """The thread that was lost, and those that may end the wait."""
    python = thread.process.python
    known = python.possible_wakers(thread.tid, found)
    if not known or (expects and not any(each.is_proven for each in known.functions)):
        return None, expects  # those that have it at hand may do anything with it
    there = [tid for ident in known.idents if (tid := python.tid_of_ident(ident)) is not None]
    alive = tuple(tid for tid in there if not _waits_alike(thread, tid, found))
    if alive or (known.takes_jobs and not known.ended):
        return None, alive or expects
    absent = "other thread" if there else "thread"
    handled = wait.detail.set_by_handlers or wait.kind.traits.handler_may_end_it
    lost = _lost(thread, known, may_be_handled=handled, absent=absent)
    if not lost or not lost.threads:
        lost = _left_behind(thread, found, wait) or lost
    return lost, () if lost else expects


def _left_behind(thread: ThreadSnapshot, found: PythonWait, wait: Wait) -> LostThread | None:
    """The threads that had a method which ends the wait to call, or those of the parent process that had the object at
    hand, whatever functions they ran."""
    if wait.detail.set_by_handlers and _may_be_set_by_handler(thread):
        return None
    python = thread.process.python
    callers = python.dead_threads_calling(found)
    if callers:
        return LostThread(tuple(each.name for each in callers), loss_of(thread, callers), does="was to end this wait")
    if not fork_evidence(thread.process):
        return None
    dead = python.dead_threads_reaching(found.address)
    users = [each for each in dead if loss_of(thread, (each,)) is Loss.LEFT_BEHIND]
    source = users[0].target.function if users else None
    place = f"{(source.file or '').rpartition('/')[2]}:{source.line}" if source else ""
    does = f"had it at hand in {users[0].function}{f' ({place})' if place else ''}" if users else ""
    return LostThread(tuple(each.name for each in users), Loss.LEFT_BEHIND, does=does) if users else None


def lost_pool(thread: ThreadSnapshot) -> Polled | None:
    """The pool that the code of a loop has at hand, and that has jobs and no threads to do them."""
    pool = thread.process.python.lost_pool(thread.tid) if fork_evidence(thread.process) else None
    if not pool or loss_of(thread, pool.helpers.threads) is not Loss.LEFT_BEHIND:
        return None
    names = tuple(each.name for each in pool.helpers.threads)
    lost = LostThread(names, Loss.LEFT_BEHIND, recorded=True, does=pool.helpers.does)
    return Polled(None, lost, f"{counted(pool.jobs, 'job')} of a {pool.kind}")


def _waits_alike(thread: ThreadSnapshot, tid: int, wait: PythonWait) -> bool:
    """Another thread waits for the very object, as at a barrier."""
    other = thread.process.thread(tid)
    futex = other.futex if other else None
    found = thread.process.python.wait(tid, futex.address) if futex else None
    return found is not None and found.address == wait.address


def lost_setter(thread: ThreadSnapshot, flags: Sequence[str]) -> LostThread | None:
    """The thread that should change one of the variables that a loop looks at, and is not there. A handler of a signal
    may change any."""
    if _may_be_set_by_handler(thread):
        return None
    for name in flags:
        known = thread.process.python.possible_setters(thread.tid, name)
        if known and known.functions and not known.idents and known.ended:
            return _lost(thread, known, may_be_handled=False, sets=name)
    return None


def _lost(
    thread: ThreadSnapshot,
    known: PossibleWakers,
    may_be_handled: bool,
    sets: str = "",
    absent: str = "thread",
) -> LostThread | None:
    """The threads that have ended, and the functions that no thread is in, or no other than those that wait alike."""
    named = tuple(each for each in known.ended if each.function)
    ended = named or known.ended
    if any(each.hands_on for each in known.functions):
        return None  # whoever was given it may act, in whatever function
    if not known.functions or (may_be_handled and not named and _may_be_set_by_handler(thread)):
        return None
    clause = _absence(known, named, absent, sets)
    python = thread.process.python
    error = next((text for each in ended if (text := python.kept_error(each.value))), "")
    if not ended:
        error = python.error_in_future(thread.tid, {each.function.code for each in known.functions})
    proven = bool(named)
    names = tuple(each.name for each in ended)
    loss = loss_of(thread, ended) if ended else Loss.ENDED
    return LostThread(names, loss, nobody=clause, error=error, is_proven=proven)


_TAKES = "acquire"
"""The method by which somebody must have taken a lock or semaphore that no function is known to give back."""


def _absence(known: PossibleWakers, ended: Sequence[ThreadObject], absent: str, sets: str) -> str:
    """The clause that no thread is in the functions that could end the wait. Those are named that are proven to act on
    the very object, else the one of a thread that has ended."""
    proven = [each for each in known.functions if each.is_proven]
    names = {each.function.rpartition(".")[2] for each in ended}
    of_ended = [each for each in known.functions if each.function.qualname.rpartition(".")[2] in names]
    functions = tuple(dict.fromkeys(map(_place, proven or of_ended)))
    method = known.functions[0].method
    does = f"sets {sets}" if sets else f"calls {method}(){' of it' if proven else ''}"
    if method == _TAKES:
        does += ", and nothing that is known of the program calls release()"
    if not functions:
        return f"no {absent} is in a function of the program that {does} of such an object"
    more = f" and {len(functions) - _SHOWN} more" if len(functions) > _SHOWN else ""
    return f"no {absent} is in {', '.join(functions[:_SHOWN])}{more}, which {does}"


def _may_be_set_by_handler(thread: ThreadSnapshot) -> bool:
    """Python runs handlers of signals in the main thread, also while that waits."""
    handled = thread.process.procfs.handled_signals()
    return thread.tid == thread.process.pid and (handled is None or bool(handled))


def _place(acting: WakingFunction) -> str:
    file = (acting.function.file or "").rpartition("/")[2]
    return f"{acting.function.qualname} ({file}:{acting.function.line})"
