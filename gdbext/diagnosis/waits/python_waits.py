"""Waits for Python's locks, for what ``threading``, ``queue`` and ``concurrent.futures`` build on them, and the GIL.

A lock is a semaphore without an owner: which thread must act follows from Python's frames and objects
(cpython/sync/python_wait.py). A missing thread is recorded if objects name it, else concluded: functions could end the
wait, no thread is in one of them, and threads have exited (cpython/sync/waker_search.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.cpython.sync.locks import GilPart, GilState
from gdbext.cpython.sync.parking import ParkedOn
from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, ParentsThread, VanishedThread, Wait
from gdbext.diagnosis.report.wait_detail import OtherEnd, Owned, Polled, Unowned
from gdbext.diagnosis.report.wait_kind import Loss, LostThread, Resource, SelfWait, WaitKind
from gdbext.diagnosis.waits import dead_workers
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.pool_workers import python_pool_of
from gdbext.diagnosis.waits.snapshot import FutexWait, ThreadSnapshot, joined, process_list, wait_for_threads
from gdbext.engine.glibc.pthread import was_thread
from gdbext.engine.vocabulary import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gdbext.cpython.sync.helper_threads import ThreadObject
    from gdbext.cpython.sync.parking import Parked
    from gdbext.cpython.sync.python_wait import PythonWait
    from gdbext.cpython.sync.waker_search import PossibleWakers


def _self_wait(thread: ThreadSnapshot) -> SelfWait | None:
    """Why a thread waits for a lock that it holds: what interrupted its own code, by the frames on its stack."""
    if any(frame.function.rpartition(".")[2] == "__del__" for frame in thread.python):
        return SelfWait.FINALIZER
    if FunctionTag.RUNS_SIGNAL_HANDLERS in thread.inner_tags:
        return SelfWait.SIGNAL
    if FunctionTag.RUNS_WEAKREF_CALLBACKS in thread.inner_tags:
        return SelfWait.WEAKREF
    if FunctionTag.RUNS_FINALIZERS in thread.inner_tags:
        return SelfWait.FINALIZER
    # Without symbols, the C function that calls handlers has no name.
    return SelfWait.SIGNAL if thread.process.python.in_signal_handler(thread.tid) else None


def _pool_result_wait(
    thread: ThreadSnapshot, python_wait: PythonWait, name: str, timed: bool, evidence: tuple[str, ...]
) -> Wait:
    """The wait for a pool's result, or for a lost or blocked helper thread of the pool. ``name``: of the result."""
    process = thread.process
    resource = Resource(WaitKind.CONDVAR, python_wait.address, name)
    workers = process.processes(python_wait.pids)
    # No worker has a job if one reads from the pool's pipe, and the others wait for their turn to read.
    living = [worker for worker in workers if not worker.ending]
    has_reader = any(worker.reads_from_us for worker in living)
    idle = has_reader and all(worker.reads_from_us or worker.call == "futex" for worker in living)
    at_work = bool(workers) and not idle
    exited = (helper for helper in python_wait.helpers if helper.thread.has_ended)
    lost = next((helper for helper in exited if not (helper.only_replaces and at_work)), None)
    if lost or python_wait.lacks_workers:
        absent = NO_WORKERS
        if lost:
            absent = LostThread((lost.thread.name,), loss_of(thread, (lost.thread,)), recorded=True, does=lost.does)
        return Wait(resource, timed=timed, evidence=evidence, detail=Unowned(absent))
    dead = dead_workers.lost_worker(process, python_wait.pids, at_work=bool(living) and not idle)
    if dead:
        return Wait(resource, timed=timed, evidence=evidence, detail=Unowned(dead))
    if not workers:  # the workers are threads: any that runs a job, of any pool
        running = [other.tid for other in process.threads if other is not thread and _runs_job(other)]
        if len(running) == 1:
            return wait_for_threads(resource, running, OwnerCertainty.INFERRED, *evidence, timed=timed)
        several = f", from one of the threads {joined(list(map(str, running)))}" if running else ""
        return Wait(resource._replace(name=f"{name}{several}"), timed=timed, evidence=evidence)
    delivers = "complete a" if python_wait.kind.is_future else "deliver"
    text = f"worker {process_list(workers)} to {delivers} {name}"
    if idle:
        for helper in python_wait.helpers:  # those that distribute jobs or collect results, not the one that forks
            other = process.thread(helper.tid) if helper.tid is not None else None
            if other and other.futex and not python_pool_of(other):
                why = f"every worker waits for work, and thread {helper.tid}, which {helper.does}, does not"
                return wait_for_threads(resource, (other.tid,), OwnerCertainty.INFERRED, *evidence, why, timed=timed)
        text += ", but every worker is idle: the job was lost with a worker that exited, and no result will come"
    resource = Resource(WaitKind.CHILD_PROCESS, python_wait.address, text)
    return Wait(resource, timed=timed, evidence=evidence, detail=OtherEnd(children=workers))


def _runs_job(thread: ThreadSnapshot) -> bool:
    """True if the thread is a worker of a multiprocessing.pool.ThreadPool with a job: ``worker`` of
    multiprocessing/pool.py calls the job, and between two jobs takes one from a SimpleQueue."""
    calls = [(frame.file.endswith("multiprocessing/pool.py"), frame.function) for frame in thread.python]
    futex, python = thread.futex, thread.process.python
    if calls[:1] != [(True, "worker")] or not futex or not python:
        return (True, "worker") in calls
    python_wait = python.wait(thread.tid, futex.address)  # the job may be a C function
    return python_wait is not None and python_wait.kind is not Waitable.SIMPLE_QUEUE


NO_WORKERS = LostThread(
    (),
    Loss.ENDED,
    no_waker_clause="its ProcessPoolExecutor has no worker process left (as after max_tasks_per_child), and "
    "nothing starts another",
    recorded=True,
)


class _Meaning(NamedTuple):
    """The wait for a kind of Python object; ``name``: of the object."""

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
    Waitable.SHUTDOWN: _Meaning(WaitKind.JOIN, "all non-daemon threads (the interpreter is shutting down)"),
}


def python_object_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that sleeps on a lock made by Python, None for any other."""
    futex = thread.futex
    # At most 7 frames are between the kernel and PyThread_acquire_lock_timed.
    if not futex or thread.level_of(FunctionTag.PYTHON_LOCK, within=7) is None:
        return None
    wait, python = _object_wait(thread, futex), thread.process.python
    if wait.kind is not WaitKind.PYTHON_LOCK:
        return wait
    detail = wait.detail
    if isinstance(wait.owner, OwnerThread):
        detail = Owned(python.where_taken(futex.address, wait.owner.tid), self_wait=detail.self_wait)
    variable = python.variable_of(thread.tid, wait.resource.address)
    return wait._replace(resource=wait.resource._replace(variable=variable), detail=detail)


def _object_wait(thread: ThreadSnapshot, futex: FutexWait) -> Wait:
    """The wait for the Python object that the frames show, or for the lock alone."""
    python = thread.process.python
    python_wait = python.wait(thread.tid, futex.address)
    free = any(thread.process.memory.try_read(futex.address, 4))
    if not python_wait:
        return _plain_lock_wait(thread, futex, futex.address, "", free)
    meaning = _MEANINGS[python_wait.kind]
    if meaning.kind is WaitKind.PYTHON_LOCK or python_wait.reacquiring:
        return _lock_wait(thread, futex, python_wait, free)
    evidence = (f"Python frame {python_wait.frame.function}: {python_wait.kind.value} at {python_wait.address:#x}",)
    resource = Resource(meaning.kind, python_wait.address, ": ".join(filter(None, (meaning.name, python_wait.lacks))))
    owner = python_wait.owner_tid
    if meaning.kind is WaitKind.JOIN:
        name = f"thread {owner}" if owner is not None else meaning.name or "a Python thread"
        tids = [tid for tid in python_wait.awaited if tid != thread.tid] if owner is None else [owner]
        resource = resource._replace(name=name)
        return wait_for_threads(resource, tids, OwnerCertainty.RECORDED, *evidence, timed=futex.timed)
    if not free:
        if python_wait.pids or python_wait.helpers or python_wait.lacks_workers:
            return _pool_result_wait(thread, python_wait, meaning.name, futex.timed, evidence)
        wait = _wait_for_known_thread(thread, futex, python_wait, resource, evidence)
        if wait:
            return wait
    detail = Unowned(expects=python_wait.awaited, set_by_handlers=meaning.set_by_handlers)
    return Wait(resource, timed=futex.timed, evidence=evidence, being_released=free, detail=detail)


def _wait_for_known_thread(
    thread: ThreadSnapshot, futex: FutexWait, python_wait: PythonWait, resource: Resource, evidence: tuple[str, ...]
) -> Wait | None:
    """The wait for a semaphore or future that a known thread must release or complete, None if no thread is known."""
    python, kind = thread.process.python, python_wait.kind
    certainty, self_wait = OwnerCertainty.RECORDED, None
    loop = None
    if resource.kind is WaitKind.SEMAPHORE and len(inside := python.inside_object(python_wait.address)) == 1:
        tids, certainty = inside, OwnerCertainty.INFERRED
        why = f"thread {inside[0]} is inside a with statement of it"
    elif kind is Waitable.FUTURE and python_wait.owner_tid is not None:
        tids, why = (python_wait.owner_tid,), f"thread {python_wait.owner_tid} runs its job"
    elif python_wait.exhausted:  # each worker of the pool waits for a job that no worker is left to run
        tids = tuple(tid for tid in python_wait.exhausted if tid != thread.tid)
        self_wait = None if tids else SelfWait.POOL
        count = len(python_wait.exhausted)
        workers = "the only worker" if count == 1 else f"each of the {count:,} workers"
        why = f"its job is pending, and {workers} of the pool waits for such a job"
    elif kind is Waitable.FUTURE and (loop := python.loop_owing(python_wait.address)) is not None:
        tids, self_wait = (loop,), SelfWait.EVENT_LOOP if loop == thread.tid else None
        whose = "this very thread" if self_wait else f"thread {loop}"
        why = f"a callback or a task of the event loop of {whose} completes it"
    else:
        return None
    wait = wait_for_threads(resource, tids or (thread.tid,), certainty, *evidence, why, timed=futex.timed)
    return wait._replace(detail=Owned(self_wait=self_wait)) if self_wait or loop is not None else wait


def _lock_wait(thread: ThreadSnapshot, futex: FutexWait, python_wait: PythonWait, free: bool) -> Wait:
    """The wait for a lock object, also of a Condition that takes its lock back; ``free``: the lock is free now."""
    process, lock, kind = thread.process, python_wait.lock, python_wait.kind
    if kind is not Waitable.IMPORT:
        kind = Waitable.RLOCK if Waitable.RLOCK in (kind, lock and lock.kind) else Waitable.LOCK
    name = _MEANINGS[kind].name
    address = lock.address if lock and kind is not Waitable.IMPORT else python_wait.address
    ident, tid = python_wait.owner_ident, python_wait.owner_tid
    ident = lock.owner_ident if ident is None and lock else ident
    tid = lock.owner_tid if tid is None and lock else tid
    if ident is None:
        return _plain_lock_wait(thread, futex, address, name, free)
    resource = Resource(WaitKind.PYTHON_LOCK, address, name)
    evidence = f"{name} {address:#x} records its owner: thread ident {ident:#x}"
    if free:
        return Wait(resource, being_released=True, evidence=(evidence, "it is free now"))
    if tid is not None:
        return Wait(resource, OwnerThread(tid), OwnerCertainty.RECORDED, futex.timed, (evidence,))
    # No thread with that ident was found: it is gone only if each of them was examined, and RECORDED only if a thread
    # has had that ident, because one damaged word names no thread. Page 0 is never mapped (vm.mmap_min_addr).
    if ident % 8 or not 1 << 12 <= ident < process.memory.architecture.user_limit:
        return Wait(resource, timed=futex.timed, evidence=(evidence, "no thread can have that ident: it is damaged"))
    if not process.python.has_no_thread(ident):
        return Wait(resource, timed=futex.timed, evidence=(evidence, "which thread has that ident could not be read"))
    certainty, history = OwnerCertainty.INFERRED, "nothing shows that one ever had it"
    if was_thread(process.memory, ident):
        certainty, history = OwnerCertainty.RECORDED, f"a thread had it: its block is at {ident:#x}"
    reasons = (evidence, f"no thread has that ident, and {history}")
    return Wait(resource, VanishedThread(0, ident), certainty, futex.timed, reasons)


def _plain_lock_wait(thread: ThreadSnapshot, futex: FutexWait, address: int, name: str, free: bool) -> Wait:
    """The wait for a lock that records no owner: the holder follows from the ``with`` and ``try`` blocks of all
    threads, or from a fork. ``free``: the lock is free now."""
    process, tid = thread.process, thread.tid
    resource = Resource(WaitKind.PYTHON_LOCK, address, name)
    evidence = f"semaphore {futex.address:#x} of a Python lock, which records no owner"
    if free:
        return Wait(resource, being_released=True, evidence=(evidence, "it is free now"))
    holder, reason = None, ""
    for tids, how in (
        (process.python.inside_with(futex.address), "is inside a with statement of this lock"),
        (
            process.python.likely_holders(futex.address, tid),
            "has a reference to this lock in a try block that may release it",
        ),
    ):
        # A thread that sleeps on the lock does not hold it; itself it holds it only if no other thread can.
        holders = set(tids) - {tid} - process.sleepers.get(futex.address, set()) or set(tids) & {tid}
        if len(holders) == 1:
            holder = holders.pop()
            reason = f"thread {holder} {how}"
            break
    if holder is None and process.python.has_taken(tid, futex.address):
        holder, reason = tid, "it called acquire() before, and no other thread has a reference to this lock"
    if holder is not None:
        detail = Owned(self_wait=_self_wait(thread) if holder == tid else None)
        certainty = OwnerCertainty.INFERRED
        return Wait(resource, OwnerThread(holder), certainty, futex.timed, (evidence, reason), detail)
    if len(process.tids) == 1 and process.fork_evidence:
        alone = "this process has one thread, and none of its frames holds the lock"
        facts = (evidence, alone, *process.fork_evidence)
        return Wait(resource, ParentsThread(), OwnerCertainty.INFERRED, futex.timed, facts)
    return Wait(resource, timed=futex.timed, evidence=(evidence,))


def with_possible_wakers(thread: ThreadSnapshot, wait: Wait, detail: Unowned, expects: tuple[int, ...]) -> Unowned:
    """``detail`` with the missing thread that should end the wait, or the ids of the threads that may end it by the
    functions that they are in. ``expects``: ids of those that can reach its object, used if nothing more is found."""
    futex = thread.futex
    python_wait = thread.process.python.wait(thread.tid, futex.address) if futex else None
    lost = detail.lost
    if python_wait and not lost and not wait.external and not python_wait.awaited:
        lost = _recorded_loss(thread, python_wait)
        lost, expects = (lost, ()) if lost else _concluded_loss(thread, python_wait, wait, expects)
    return detail._replace(lost=lost, expects=expects)


def _recorded_loss(thread: ThreadSnapshot, python_wait: PythonWait) -> LostThread | None:
    """The missing threads that the awaited object itself names, None if it names none."""
    python = thread.process.python
    never_started = python.never_began(python_wait)
    if never_started:
        return LostThread((never_started.name,), Loss.NEVER_BEGAN, recorded=True)
    helpers = python.lost_executor(thread.tid, python_wait.address) if python_wait.kind.is_future else None
    if not helpers:
        return None
    if not helpers.threads:
        return LostThread((), Loss.ENDED, no_waker_clause=f"no thread {helpers.does}", recorded=True)
    names = tuple(helper.name for helper in helpers.threads)
    return LostThread(names, loss_of(thread, helpers.threads), recorded=True, does=helpers.does)


def loss_of(thread: ThreadSnapshot, threads: Sequence[ThreadObject]) -> Loss:
    """How these missing threads were lost: LEFT_BEHIND if the process was forked and all their ids are lower than its
    own (ids grow, so they were started in the parent), else ENDED."""
    process = thread.process
    main = process.thread(process.pid)
    own = main.own_tid if main else None
    older = own is not None and all(0 < lost.native_id < own for lost in threads)
    return Loss.LEFT_BEHIND if older and process.fork_evidence else Loss.ENDED


def _concluded_loss(
    thread: ThreadSnapshot, python_wait: PythonWait, wait: Wait, expects: tuple[int, ...]
) -> tuple[LostThread | None, tuple[int, ...]]:
    """(the missing thread by the functions that could end the wait, None if no thread is missing; ids of the threads
    that may end it). ``expects``: as in with_possible_wakers()."""
    process, python = thread.process, thread.process.python
    wakers = python.possible_wakers(thread.tid, python_wait)
    if not wakers or (expects and not any(function.is_proven for function in wakers.functions)):
        return None, expects  # threads that can reach the object may do anything with it

    def waits_alike(tid: int) -> bool:
        """True if the thread waits for the very same object, as at a barrier."""
        other = process.thread(tid)
        other_wait = python.wait(tid, other.futex.address) if other and other.futex else None
        return other_wait is not None and other_wait.address == python_wait.address

    candidates = [tid for ident in wakers.idents if (tid := python.tid_of_ident(ident)) is not None]
    alive = tuple(tid for tid in candidates if not waits_alike(tid))
    if alive or (wakers.takes_jobs and not wakers.ended):
        return None, alive or expects
    handled = wait.detail.set_by_handlers or wait.kind.traits.handler_may_end_it
    absent = "other thread" if candidates else "thread"
    lost = _lost_waker(thread, wakers, may_be_handled=handled, absent=absent)
    if (lost and lost.threads) or (wait.detail.set_by_handlers and _may_be_set_by_handler(thread)):
        return lost, () if lost else expects
    # Threads that were to call a method which ends the wait, or the parent's threads that had a reference to it.
    callers = python.dead_threads_calling(python_wait)
    if callers:
        names = tuple(caller.name for caller in callers)
        return LostThread(names, loss_of(thread, callers), does="was to end this wait"), ()
    users = python.dead_threads_reaching(python_wait.address) if process.fork_evidence else ()
    users = [user for user in users if loss_of(thread, (user,)) is Loss.LEFT_BEHIND]
    if users:
        source = users[0].target.function
        place = f" ({(source.file or '').rpartition('/')[2]}:{source.line})" if source else ""
        does = f"had a reference to it in {users[0].function}{place}"
        return LostThread(tuple(user.name for user in users), Loss.LEFT_BEHIND, does=does), ()
    return lost, () if lost else expects


def lost_pool(thread: ThreadSnapshot) -> Polled | None:
    """The pool that a loop's code can reach, if it has jobs and a fork left its threads behind, or its worker processes
    are dead; None otherwise."""
    pool_of_processes = dead_workers.polled_pool(thread)
    if pool_of_processes:
        return pool_of_processes
    pool = thread.process.python.lost_pool(thread.tid) if thread.process.fork_evidence else None
    if not pool or loss_of(thread, pool.helpers.threads) is not Loss.LEFT_BEHIND:
        return None
    names = tuple(helper.name for helper in pool.helpers.threads)
    lost = LostThread(names, Loss.LEFT_BEHIND, recorded=True, does=pool.helpers.does)
    return Polled(None, lost, f"{counted(pool.jobs, 'job')} of a {pool.kind}")


def lost_setter(thread: ThreadSnapshot, flags: Sequence[str]) -> LostThread | None:
    """The missing thread that should set one of these variables, which a loop tests; None if a handler may."""
    if _may_be_set_by_handler(thread):
        return None
    for name in flags:
        wakers = thread.process.python.possible_setters(thread.tid, name)
        if wakers and wakers.functions and not wakers.idents and wakers.ended:
            return _lost_waker(thread, wakers, may_be_handled=False, sets=name)
    return None


def _lost_waker(
    thread: ThreadSnapshot, wakers: PossibleWakers, may_be_handled: bool, sets: str = "", absent: str = "thread"
) -> LostThread | None:
    """The exited threads and the functions that could end the wait; None if another thread or (``may_be_handled``) a
    signal handler may. ``sets``: the variable that they should set; ``absent``: "thread" or "other thread"."""
    functions = wakers.functions
    named = tuple(ended for ended in wakers.ended if ended.function)
    ended = named or wakers.ended
    if any(function.hands_on for function in functions):
        return None  # a thread that was given the object may act, in whatever function
    if not functions or (may_be_handled and not named and _may_be_set_by_handler(thread)):
        return None
    # The clause names functions that are proven to act on the very object, else that of a thread that has exited.
    proven = [function for function in functions if function.is_proven]
    last_names = {thread_object.function.rpartition(".")[2] for thread_object in named}
    of_ended = [waker for waker in functions if waker.function.qualname.rpartition(".")[2] in last_names]
    named_functions = dict.fromkeys(waker.function for waker in proven or of_ended)
    places = [f"{code.qualname} ({(code.file or '').rpartition('/')[2]}:{code.line})" for code in named_functions]
    method = functions[0].method
    does = f"sets {sets}" if sets else f"calls {method}(){' on it' if proven else ''}"
    if method == "acquire":  # taken by a function, and no function is known to release it
        does += ", and no known code of the program calls release()"
    more = f" and {len(places) - 3} more" if len(places) > 3 else ""
    clause = f"no {absent} is in {', '.join(places[:3])}{more}, which {does}"
    if not places:
        clause = f"no {absent} is in a function of the program that {does} on such an object"
    python = thread.process.python
    error = next((text for lost in ended if (text := python.kept_error(lost.value))), "")
    if not ended:
        error = python.error_in_future(thread.tid, {waker.function.code for waker in functions})
    names = tuple(lost.name for lost in ended)
    loss = loss_of(thread, ended) if ended else Loss.ENDED
    return LostThread(names, loss, no_waker_clause=clause, error=error, is_proven=bool(named))


def _may_be_set_by_handler(thread: ThreadSnapshot) -> bool:
    """True if a signal handler may act on the object: Python runs handlers in the main thread while it waits."""
    handled = thread.process.procfs.handled_signals()
    return thread.tid == thread.process.pid and (handled is None or bool(handled))


_NEAR_TAKE_GIL = 8
"""Frames between the kernel and PyEval_RestoreThread and its like."""


def gil_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that wants the GIL (or has just offered it), None for any other. It waits 5 ms at a time and
    begins again, so its timeout means nothing. The futex's address decides, as take_gil has no name in a stripped
    Python, and a thread may wait for something else under PyEval_RestoreThread."""
    futex = thread.futex
    if not futex:
        return None
    gil, part = next(((gil, part) for gil in thread.process.gils if (part := gil.part_at(futex.address))), (None, None))
    if not gil or not part:
        if thread.process.gils or thread.level_of(FunctionTag.TAKES_GIL, within=_NEAR_TAKE_GIL) is None:
            return None
        return Wait(Resource(WaitKind.GIL, 0), evidence=("by the functions on its stack; the GIL could not be read",))
    evidence = f"futex {futex.address:#x} is in the GIL's {part.value} (GIL at {gil.address:#x})"
    holder = _holder(thread, gil)
    if part in (GilPart.SWITCH_COND, GilPart.SWITCH_MUTEX):
        # It has dropped the GIL on request and lets another thread take it first (FORCE_SWITCHING).
        why = "it has just offered the GIL to another thread"
    elif not gil.locked:
        why = "the GIL is free"
    elif holder:
        return _held_gil_wait(gil, holder, evidence)
    else:
        changing = thread.process.owner(gil.mutex_owner) if gil.mutex_owner is not None else None
        if not isinstance(changing, OwnerThread):
            state = f"its holder's thread state {gil.last_holder or 0:#x} belongs to no thread"
            return Wait(gil_resource(gil), evidence=(evidence, state))
        why = f"thread {changing.tid} is changing it"
    return Wait(gil_resource(gil), being_released=True, evidence=(evidence, why))


def is_of_two_moments(thread: ThreadSnapshot, wait: Wait | None) -> bool:
    """True if the thread waits for the GIL but has its mutex: it woke up while memory was read."""
    if not wait or wait.kind is not WaitKind.GIL or not thread.syscall or not thread.own_tid:
        return False
    return any(gil.mutex_owner == thread.own_tid for gil in thread.process.gils)


def repeated_gil_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait for the GIL of a thread that is inside take_gil between two waits of 5 ms; None for any other."""
    level = thread.level_of(FunctionTag.TAKES_GIL, FunctionTag.OFFERS_GIL, within=_NEAR_TAKE_GIL - 2)
    if level is None:
        # The evaluation loop calls take_gil, which has no name in a stripped Python and calls only libc and vdso.
        loop = thread.level_of(FunctionTag.EVAL_FUNCTIONS, within=5)
        below_take_gil = {FunctionTag.CONDVAR, FunctionTag.MUTEX, FunctionTag.OFFERS_GIL}
        if not loop or FunctionTag.CONDVAR not in thread.inner_tags:
            return None
        if not all(not thread.stack.function(at) or thread.tags(at) <= below_take_gil for at in range(loop)):
            return None
    # Inside a wait for the GIL's condition: a GIL that the thread holds then, it has held before.
    on_condition = thread.level_of(FunctionTag.CONDVAR, within=_NEAR_TAKE_GIL if level is None else level) is not None
    gils = thread.process.gils
    for gil in gils:
        holder = _holder(thread, gil)
        has_just_taken_it = holder is not None and holder[0] == thread.tid and not on_condition
        is_wanted = len(gils) == 1 or gil.mutex_owner == thread.own_tid  # several: only an address tells
        if holder and is_wanted and not has_just_taken_it:
            return _held_gil_wait(
                gil, holder, "it runs inside the function that takes the GIL, between two timed waits"
            )
    return None


def _holder(thread: ThreadSnapshot, gil: GilState) -> tuple[int, OwnerCertainty] | None:
    """(the holder's tid, the certainty): RECORDED while the GIL's fields are at rest. While a thread has the GIL's
    mutex it may be changing them, so the last holder is INFERRED, unless that very thread has the mutex."""
    if not gil.locked:
        return None
    if gil.holder_tid is not None:
        return gil.holder_tid, OwnerCertainty.RECORDED
    last = thread.process.python.tid_of_state(gil.last_holder) if gil.last_holder is not None else None
    mutex_holder = thread.process.owner(gil.mutex_owner) if gil.mutex_owner is not None else None
    if last is None or not mutex_holder or mutex_holder == OwnerThread(last):
        return None
    return last, OwnerCertainty.INFERRED


def gil_resource(gil: GilState) -> Resource:
    """The GIL, with its interpreter unless that is the main one."""
    return Resource(WaitKind.GIL, gil.address, f"interpreter {gil.interpreter}" if gil.interpreter else "")


def _held_gil_wait(gil: GilState, holder: tuple[int, OwnerCertainty], evidence: str) -> Wait:
    """The wait for a GIL that is held; ``holder``: see _holder()."""
    tid, certainty = holder
    state = f"the GIL is locked; its last holder is the thread state {gil.last_holder or 0:#x} of thread {tid}"
    return Wait(gil_resource(gil), OwnerThread(tid), certainty, timed=True, evidence=(evidence, state))


def parking_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread parked on an object's lock or in a stop-the-world pause (free-threaded Python), or None."""
    futex = thread.futex
    parked = thread.process.python.parked(thread.tid, futex.address) if futex else None
    if not futex or not parked:
        return None
    evidence = f"futex {futex.address:#x} is the semaphore of a thread that is parked on {parked.kind.value}"
    if parked.kind is not ParkedOn.OBJECT:
        return _world_wait(parked, evidence)
    why = "no thread is in a critical section of it"
    if parked.owners:
        why = f"thread {parked.owners[0]} is in a critical section of it"
    resource = Resource(WaitKind.OBJECT_LOCK, parked.address, parked.type_name)
    return wait_for_threads(resource, parked.owners[:1], OwnerCertainty.RECORDED, evidence, why)


def stop_the_world_wait(thread: ThreadSnapshot) -> Wait | None:
    """The wait of a thread that stops the world and checks every ms whether the others have stopped; else None."""
    parked = thread.process.python.stopping(thread.tid)
    return _world_wait(parked, "it has asked all other threads to stop") if parked else None


def _world_wait(parked: Parked, evidence: str) -> Wait:
    """The wait for a stop-the-world pause: to begin it, or until it is over."""
    owners = parked.owners
    if parked.kind is ParkedOn.PAUSE:
        name, why = "all other threads to stop (stop-the-world)", f"not stopped: {', '.join(map(str, owners))}"
    else:
        name, why = "the end of a stop-the-world pause", f"thread {owners[0]} has asked for it" if owners else ""
    resource = Resource(WaitKind.STOP_THE_WORLD, parked.address, name)
    return wait_for_threads(resource, owners, OwnerCertainty.RECORDED, evidence, *((why,) if owners else ()))
