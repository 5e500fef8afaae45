"""The questions that recognizers of waits ask about the CPython in the process, by kernel thread ids (tids)."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.sync import full_pools, held_locks, helper_threads, locks, polled_objects, python_wait, waker_search
from gdbext.cpython.sync.parking import ParkingLot
from gdbext.cpython.threads import object_text
from gdbext.cpython.threads.frame_variables import instruction, name_of
from gdbext.cpython.threads.object_users import tids_by_object
from gdbext.cpython.threads.runtime import active_threads
from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
    from typing import TypeVar

    from gdbext.cpython.objects.code import PythonFunction
    from gdbext.cpython.sync.parking import Parked
    from gdbext.cpython.sync.polled_objects import PolledObject, Question
    from gdbext.cpython.sync.python_wait import PythonWait
    from gdbext.cpython.sync.waker_search import PossibleWakers
    from gdbext.cpython.tasks.awaited import Awaited
    from gdbext.cpython.tasks.library_tasks import LoopReader
    from gdbext.cpython.tasks.loops import RunningLoop, RunningTask
    from gdbext.cpython.threads.frame_reader import PythonFrame, ThreadState
    from gdbext.cpython.threads.frame_variables import PyStack
    from gdbext.cpython.threads.object_text import HandledError
    from gdbext.cpython.threads.runtime import NoteError, ThreadTable

    _Key = TypeVar("_Key", bound=Hashable)
    _Entry = TypeVar("_Entry")
    _Groups = dict[_Key, list[_Entry]]


_POLLING_FRAMES = 3  # innermost Python frames that are searched for the loop of a sleep: a function may only sleep
_PAUSES = {"sleep", "sched_yield"}
_NAMING_FRAMES = 3  # innermost Python frames that are searched for the name of a lock
_MOST_NAMED = 16  # most threads whose frames are searched for it


class PythonWaitView:
    """Answers from the interpreter's own objects: None, empty or False if they cannot be read, which is noted.
    ``futex``: the address that a thread sleeps on."""

    def __init__(self, threads: ThreadTable, note: NoteError) -> None:
        self.runtime = threads.runtime
        self._threads = threads
        self._note = note
        self._named: set[int] = set()  # tids whose frames were searched for names of locks
        self._waits: dict[tuple[int, int], PythonWait | None] = {}

    def __bool__(self) -> bool:
        return bool(self.runtime)

    def states(self, tid: int) -> Sequence[ThreadState]:
        """The thread states of a thread, one for each interpreter."""
        return self._threads.states.get(tid, ())

    def _first_state(self, tid: int) -> ThreadState | None:
        return next(iter(self.states(tid)), None)

    def _noted(self, where: str, read: Callable[[], _Entry], default: _Entry) -> _Entry:
        """The result of ``read()``; if that cannot be read, the default, and a note that ``where`` something failed."""
        try:
            return read()
        except GdbextError as error:
            self._note(error, where)
            return default

    def stack(self, tid: int) -> PyStack:
        return self._threads.frames(tid)

    @cached_property
    def gils(self) -> Sequence[locks.GilState]:
        """The GILs of all interpreters."""
        return self._noted("GIL", lambda: locks.read_gils(self.runtime), [])

    def tid_of_state(self, address: int) -> int | None:
        """The tid of the thread with the PyThreadState at ``address``."""
        tids = {state.address: tid for tid, states in self._threads.states.items() for state in states}
        return tids.get(address)

    def wait(self, tid: int, futex: int) -> PythonWait | None:
        """The wait that the thread's Python frames show; read once."""

        def read(state: ThreadState) -> PythonWait | None:
            return python_wait.python_wait(self.runtime, state, futex, lambda: self.running_jobs)

        key = tid, futex
        if key not in self._waits:
            where = f"Python objects of thread {tid}"
            waits = (self._noted(where, partial(read, state), None) for state in self.states(tid))
            self._waits[key] = next(filter(None, waits), None)
        return self._waits[key]

    def never_began(self, wait: PythonWait) -> helper_threads.ThreadObject | None:
        """The thread whose first event Thread.start() waits for, if no native thread is left that could set it."""
        is_event = wait.kind is Waitable.EVENT
        return helper_threads.never_began(self.runtime, PyRef(self.runtime, wait.address)) if is_event else None

    def lost_executor(self, tid: int, future: int) -> helper_threads.DeadWorkers | None:
        """The dead threads that should have run or dispatched the job of the future at address ``future``."""
        state, owed = self._first_state(tid), PyRef(self.runtime, future)
        workers = helper_threads.lost_executor(self.runtime, owed)
        return workers or (helper_threads.lost_loop(self.runtime, state, owed) if state else None)

    def dead_threads_reaching(self, address: int) -> Sequence[helper_threads.ThreadObject]:
        """The ended threads that refer to the object at ``address``: one of them should have woken its waiters."""
        return helper_threads.dead_threads_reaching(self.runtime, PyRef(self.runtime, address))

    def dead_threads_calling(self, wait: PythonWait) -> Sequence[helper_threads.ThreadObject]:
        """The ended threads that keep a method that ends the wait as an attribute, such as a cancelled Timer."""
        methods = waker_search.methods_that_end(wait.kind, wait.frame.name)
        return helper_threads.dead_threads_calling(self.runtime, PyRef(self.runtime, wait.address), methods)

    def ended_processes(self) -> Sequence[helper_threads.EndedProcess]:
        """The processes started by multiprocessing that have exited and were reaped."""
        return tuple(helper_threads.ended_processes(self.runtime))

    def started_processes(self) -> Sequence[helper_threads.WorkerProcess]:
        """The processes started by multiprocessing whose exit the program has not seen."""
        return tuple(helper_threads.started_processes(self.runtime))

    def process_pools(self, tid: int) -> Sequence[helper_threads.ProcessPool]:
        """The pools of processes with unfinished jobs that the thread's innermost functions refer to."""
        return tuple(helper_threads.process_pools(self.stack(tid).innermost(_POLLING_FRAMES)))

    def lost_pool(self, tid: int) -> helper_threads.DeadPool | None:
        """The pool with jobs and without threads that the thread's innermost functions refer to."""
        return helper_threads.lost_pool(self.runtime, self.stack(tid).innermost(_POLLING_FRAMES))

    def possible_wakers(self, tid: int, wait: PythonWait) -> PossibleWakers | None:
        """The functions that could end the thread's wait, the threads in them, and the threads that have ended."""
        methods, state = waker_search.methods_that_end(wait.kind, wait.frame.name), self._first_state(tid)
        if not state or not methods:
            return None
        # the holder of a lock releases it, even if no function of the program calls release() by name
        otherwise = ("acquire",) if wait.kind in (Waitable.LOCK, Waitable.SEMAPHORE) else ()
        return waker_search.possible_wakers(self.runtime, state, wait.address, methods, otherwise)

    def possible_setters(self, tid: int, name: str) -> PossibleWakers | None:
        """The functions that set the variable ``name``, which the thread polls, and the threads in them."""
        state = self._first_state(tid)
        return waker_search.possible_setters(self.runtime, state, name) if state else None

    def yields(self, tid: int) -> bool:
        """The thread is in a loop that calls ``os.sched_yield`` at each turn, by itself or through a short function."""
        return polled_objects.is_yielding_loop(self.runtime, self.stack(tid))

    def question(self, tid: int) -> Question | None:
        """The prompt at which the thread's Python functions wait for typed input."""
        questions = (polled_objects.asked_question(self.runtime.stack_of([state])) for state in self.states(tid))
        return next(filter(None, questions), None)

    def handled_error(self, tid: int) -> HandledError | None:
        """The exception whose ``except`` or ``finally`` block the thread runs."""
        return next(filter(None, (object_text.handled_error(self.runtime, state) for state in self.states(tid))), None)

    def kept_error(self, thread: PyRef) -> str:
        """The exception among the attributes of a threading.Thread, ``ValueError('bad record')``; "" for none."""
        texts = (object_text.exception_text(self.runtime, each.address) for each in thread.attributes().values())
        return next(filter(None, texts), "")

    def caught_error(self, tid: int) -> HandledError | None:
        """The exception that the thread's loop caught in an earlier iteration and keeps in a variable."""
        loop = next(filter(None, self._waiting_loops(tid)), None)
        return object_text.caught_error(self.runtime, loop) if loop else None

    def error_in_future(self, tid: int, codes: Collection[int]) -> str:
        """The exception in a Future that came through a function with one of the ``codes`` (addresses of code objects),
        ``ValueError('bad record')``; "" for none."""
        state = self._first_state(tid)
        error = waker_search.error_in_future(self.runtime, state, codes) if state else 0
        return object_text.exception_text(self.runtime, error) if error else ""

    def parked(self, tid: int, futex: int) -> Parked | None:
        """The object that the thread is parked on, in a free-threaded build."""
        parking_lot = self._parking_lot
        if not parking_lot:
            return None
        return self._noted(
            f"wait of the parked thread {tid}", lambda: parking_lot.parked(self.states(tid), futex), None
        )

    def stopping(self, tid: int) -> Parked | None:
        """The threads that this one waits for to stop the world, in a free-threaded build."""
        return self._parking_lot.stopping(self.states(tid)) if self._parking_lot else None

    @cached_property
    def _parking_lot(self) -> ParkingLot | None:
        """The parked threads; None in a build with a GIL."""
        if not self.runtime or not self.runtime.layout.abi.free_threaded:
            return None
        return self._noted("stop-the-world pauses and critical sections", lambda: ParkingLot(self.runtime), None)

    @cached_property
    def running_jobs(self) -> Mapping[int, int]:
        """Address of a concurrent.futures.Future → ident of the thread that runs its job."""
        return python_wait.running_jobs(self.runtime)

    def native_id(self, tid: int) -> int | None:
        """The thread's ``threading.Thread.native_id``: its tid when it started, which a fork does not change
        (Lib/threading.py, _after_fork, up to 3.13)."""
        idents = {state.ident for state in self.states(tid)}
        threads = (thread for ident, thread in active_threads(self.runtime) if ident.int() in idents)
        return next(filter(None, (thread.var(assumed_names.THREAD_NATIVE_ID).int() for thread in threads)), None)

    def polled_objects(self, tid: int) -> Sequence[PolledObject]:
        """The objects that the code of the thread's innermost Python frames polls."""
        for state in self.states(tid):
            stack = self.runtime.stack_of([state]).innermost(_POLLING_FRAMES)
            if not stack or not _PAUSES & stack.used_names(stack[0]):
                continue
            for frame in polled_objects.up_to_callback(stack):
                objects = polled_objects.polled_objects(self.runtime, frame)
                if objects:
                    return objects
        return ()

    def polled_results(self, objects: Sequence[PolledObject]) -> PythonWait | None:
        """The wait for the results of the futures or pools among polled objects; None without any."""
        polled = [PyRef(self.runtime, each.address) for each in objects if each.kind]
        return python_wait.for_polled(self.runtime, polled, self.running_jobs)

    def waiting_loop(self, tid: int) -> str:
        """The line of the loop that repeats the thread's wait, ``train.py:8 (step)``; "" if none is known."""
        return next((frame.place for frame in self._waiting_loops(tid) if frame), "")

    def _waiting_loops(self, tid: int) -> Iterable[PythonFrame | None]:
        """The frame with the loop that repeats the thread's wait, in each interpreter."""
        return (
            polled_objects.waiting_loop(self.runtime, self.runtime.frames.stack(state).frames)
            for state in self.states(tid)
        )

    def in_signal_handler(self, tid: int) -> bool:
        """True if a signal handler runs in the thread and has interrupted other Python code."""
        return any(python_wait.in_signal_handler(self.runtime, state) for state in self.states(tid))

    def asked_to_sleep(self, tid: int) -> float | None:
        """The seconds that the thread's innermost Python frame passed to ``time.sleep``."""
        stack = self.stack(tid)
        return polled_objects.asked_to_sleep(stack, stack[0]) if stack else None

    @cached_property
    def _loop_reader(self) -> LoopReader:
        from gdbext.cpython.tasks.library_tasks import LoopReader  # 6 ms, which most processes need not pay

        return LoopReader(self.runtime)

    def loops(self) -> Sequence[RunningLoop]:
        """The event loops of asyncio that have tasks, the runners of trio, and the greenlets."""
        return self._loop_reader.loops if self.runtime else ()

    def awaited(self, loop: RunningLoop, task: RunningTask) -> Awaited:
        return self._loop_reader.awaited(loop, task)

    def thread_function(self, task: RunningTask) -> PythonFunction | None:
        """The function that a thread runs, or shall run, for a task; None for a task that awaits no such function."""
        return full_pools.thread_function(self.runtime, task)

    def full_pools(self, loops: Sequence[RunningLoop]) -> Sequence[full_pools.FullPool]:
        """The pools whose threads all run jobs, while other jobs wait. ``loops``: with their tasks."""
        tasks = [task for loop in loops for task in loop.tasks]
        return self._noted("pools", lambda: full_pools.read_full_pools(self.runtime, tasks), [])

    def completing_task(self, future: int, loop: RunningLoop) -> int:
        """Address of the task of a loop that completes the concurrent.futures.Future at ``future``; 0 for none."""
        return full_pools.completing_task(PyRef(self.runtime, future), {task.address for task in loop.tasks})

    def called_address(self, tid: int) -> str:
        """The address of the server that the thread's innermost frames call, ``localhost:50051``; "" if unknown."""
        return full_pools.called_address(self.runtime, self.stack(tid))

    def loop_owing(self, future: int) -> int | None:
        """The tid of the thread whose event loop alone can complete the concurrent.futures.Future at ``future``."""
        loop = self._loop_reader.owing(PyRef(self.runtime, future)) if self.runtime else None
        return self.tid_of_ident(loop.ident) if loop and loop.ident else None

    def instruction(self, tid: int) -> tuple[int, int] | None:
        """(address of the thread's innermost Python frame, its position: f_lasti or an address)."""
        stack = self.stack(tid)
        return (stack[0].address, instruction(self.runtime, stack[0])) if stack else None

    def tid_of_ident(self, ident: int) -> int | None:
        """The tid of the thread with this threading.get_ident()."""
        return self.runtime.tid_of_ident(ident)

    def has_no_thread(self, ident: int) -> bool:
        """True if certainly no thread has that threading.get_ident()."""
        return self._noted("python threads", lambda: self.runtime.has_no_thread(ident), default=False)

    def users_of(self, address: int) -> Sequence[int]:
        """Tids of the threads that have an object among the variables of their frames."""
        return self._users.get(address, ())

    @cached_property
    def _users(self) -> Mapping[int, Sequence[int]]:
        """Address of an object → tids of the threads with a variable that refers to it."""
        return tids_by_object(self.runtime, self._threads.states)

    def is_taken_elsewhere(self, tid: int, semaphore: int) -> bool:
        """True if the thread waits for a multiprocessing lock with this sem_t, which another process has taken."""
        return any(python_wait.is_taken_elsewhere(self.runtime, state, semaphore) for state in self.states(tid))

    def _words(self, futex: int) -> tuple[int, ...]:
        """The ``LockState.word`` that a lock may have whose waiters sleep on ``futex``."""
        return locks.waited_words(self.runtime, futex) if self.runtime else ()

    def inside_with(self, futex: int) -> Sequence[int]:
        """Tids of the threads inside ``with lock:`` of the lock that a thread sleeping on ``futex`` waits for."""
        words = self._words(futex) if self._inside else ()
        return [tid for word in words for tid in self._inside.get(word, ())]

    def where_taken(self, futex: int, tid: int) -> str:
        """The line of the ``with`` or ``acquire()`` by which the thread holds the lock, "" if it is not known."""
        words = self._words(futex)
        frames = (held_locks.where_entered(self.runtime, state, word) for state in self.states(tid) for word in words)
        return next((frame.place for frame in frames if frame), "")

    def variable_of(self, tid: int, address: int) -> str:
        """The variable of the thread's innermost frames that refers to the object: ``stats_lock``, ``self.lock``. ""
        if there is none, and for all threads but the first 16 that were asked for: reading frames takes long."""
        if tid not in self._named and len(self._named) >= _MOST_NAMED:
            return ""
        self._named.add(tid)
        stacks = (self.runtime.frames.stack(state).frames[:_NAMING_FRAMES] for state in self.states(tid))
        names = (name_of(self.runtime, frame, address) for stack in stacks for frame in stack)
        return next(filter(None, names), "")

    def likely_holders(self, futex: int, waiter: int) -> Sequence[int]:
        """Tids with a frame inside a ``try`` … ``finally`` that acquires and releases the lock at ``futex``. The
        innermost frame of the thread with tid ``waiter`` does not count: it is the acquire itself."""
        holders = [holder for word in self._words(futex) for holder in self._holders_in_try.get(word, ())]
        return list(dict.fromkeys(tid for tid, level in holders if level or tid != waiter))

    @cached_property
    def _holders_in_try(self) -> Mapping[int, Sequence[tuple[int, int]]]:
        """``LockState.word`` of a lock → (tid, index of the frame in its stack) of each frame that may hold it."""
        return self._grouped(
            lambda tid, state: (
                (lock.word, (tid, level)) for level, lock in held_locks.held_in_try(self.runtime, state)
            )
        )

    def _grouped(self, pairs_of: Callable[[int, ThreadState], Iterable[tuple[_Key, _Entry]]]) -> _Groups[_Key, _Entry]:
        """Key → entries, of the (key, entry) pairs that ``pairs_of(tid, state)`` gives for all thread states."""
        groups: _Groups[_Key, _Entry] = {}
        for tid, states in self._threads.states.items():
            for state in states:
                for key, entry in pairs_of(tid, state):
                    groups.setdefault(key, []).append(entry)
        return groups

    def has_taken(self, tid: int, futex: int) -> bool:
        """True if the thread took the lock that it sleeps on by an earlier statement, and no other thread uses it."""
        words = self._words(futex)
        locks = (lock for state in self.states(tid) for lock in held_locks.held_after_acquire(self.runtime, state))
        lock = next((lock for lock in locks if lock.word in words), None)
        return bool(lock and set(self.users_of(lock.address)) <= {tid})

    def inside_object(self, address: int) -> Sequence[int]:
        """Tids of the threads inside a ``with`` block of the object at ``address``."""
        return list(dict.fromkeys(self._inside_objects.get(address, ())))

    @cached_property
    def _inside_objects(self) -> Mapping[int, Sequence[int]]:
        """Address of a context manager → tids."""
        return self._grouped(
            lambda tid, state: ((manager, tid) for manager in held_locks.entered_objects(self.runtime, state))
        )

    @cached_property
    def _inside(self) -> Mapping[int, Sequence[int]]:
        """Word of a lock → tids of the threads inside of its ``with`` block."""
        tids_by_word = self._grouped(
            lambda tid, state: ((lock.word, tid) for lock in held_locks.held_locks(self.runtime, state))
        )
        for address, tids in self._inside_objects.items():
            for word in locks.words_of_native_lock(self.runtime, address):
                tids_by_word.setdefault(word, []).extend(tids)
        return tids_by_word
