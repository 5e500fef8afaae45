"""Protocols of what a snapshot asks of the rooms around it. Types for checking: nothing imports this file at run
time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Protocol

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.sync.locks import GilState
from gdbext.cpython.sync.python_wait import PythonWait
from gdbext.cpython.tasks.awaited import Awaited
from gdbext.cpython.tasks.loops import RunningLoop, RunningTask
from gdbext.cpython.threads.py_stack import PyStack
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.waits.pool_table import Pool
from gdbext.engine.process.modules import Module
from gdbext.engine.targets.base_target import MemoryMapping
from gdbext.engine.targets.system.peer import ChildProcess, Peer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.cpython.sync.debtors import Debtors
    from gdbext.cpython.sync.helper_threads import EndedProcess, LostHelpers, LostPool, ThreadObject
    from gdbext.cpython.sync.parking import Parked
    from gdbext.cpython.sync.polled_objects import PolledObject, Question
    from gdbext.cpython.threads.object_text import HandledError
    from gdbext.engine.targets.system.machine import Machine


class OtherPackages(Protocol):
    """The knowledge of other packages about waits."""

    @property
    def pools(self) -> Sequence[Pool]:
        """The rows of pools that they add."""

    @property
    def recognisers(self) -> Sequence[Callable[[Any], Wait | None]]:
        """Their recognisers, each ThreadSnapshot → Wait."""


class Names(Protocol):
    """The part of process.symbols.Symbolizer that is needed here."""

    def names_at(self, address: int) -> tuple[str, ...]:
        """All mangled names of exactly that address."""


class Modules(Protocol):
    """The part of process.modules.ModuleTable that is needed here."""

    def find(self, address: int) -> Module | None:
        """The module that contains the address."""

    @property
    def mappings(self) -> Sequence[MemoryMapping]:
        """All lines of the memory map."""

    def mapping_at(self, address: int) -> MemoryMapping | None:
        """The line of the memory map that contains the address."""


class PeerReader(Protocol):
    """Reader of the other ends of descriptors."""

    def of(self, link: str, call_writes: bool) -> Peer | None:
        """The other end of a pipe or socket; ``call_writes``: the process writes to it."""

    def connecting_to(self, name: str) -> Peer | None:
        """The listener under a name of AF_UNIX, which does not accept."""

    def process_of(self, fd: int) -> Peer | None:
        """The process that a pidfd is about."""

    def lock_holder(self, fd: int, whole_file: bool) -> Peer | None:
        """The thread or process that has locked a descriptor's file; ``whole_file``: by flock(2), else by fcntl(2)."""

    def locked_elsewhere(self) -> tuple[str, Peer] | None:
        """A file that this process has open, and another one has locked."""

    def locked_here(self) -> str | None:
        """A file that this process has open, and has locked for itself."""

    def watched(self, fd: int) -> Sequence[int]:
        """The descriptors in an epoll set."""


class PythonView(Protocol):
    """The questions to the CPython in the process; every method gives nothing rather than raise."""

    def gils(self) -> Sequence[GilState]:
        """All GILs; empty where they cannot be read."""

    def tid_of_state(self, address: int) -> int | None:
        """The tid of the thread with this PyThreadState."""

    def wait(self, tid: int, futex: int) -> PythonWait | None:
        """The wait of a thread that sleeps on ``futex``, in Python's own words."""

    def parked(self, tid: int, futex: int) -> Parked | None:
        """The object that a thread of a free-threaded build which sleeps on ``futex`` is parked on."""

    def stopping(self, tid: int) -> Parked | None:
        """The threads that a thread waits for which stops the world of a free-threaded build."""

    def is_taken_by_somebody(self, tid: int, semaphore: int) -> bool:
        """The thread waits for a lock of multiprocessing that has this semaphore, and that somebody has taken."""

    def inside_with(self, futex: int) -> Sequence[int]:
        """Tids of the threads that are inside ``with lock:`` of the lock with that semaphore."""

    def where_taken(self, futex: int, tid: int) -> str:
        """The line of the ``with`` or ``acquire()`` by which that thread holds that lock, "" where it is not known."""

    def variable_of(self, tid: int, address: int) -> str:
        """The variable by which the code of that thread's innermost frames has the object; "" where none is known."""

    def inside_try(self, futex: int, waiter: int) -> Sequence[int]:
        """Tids of the threads that seem to have taken that lock before a ``try`` whose end releases it."""

    def has_taken(self, tid: int, futex: int) -> bool:
        """The thread has taken the lock that it sleeps on itself, by a statement before."""

    def inside_object(self, address: int) -> Sequence[int]:
        """Tids of the threads inside the ``with`` block of that object."""

    def native_ids(self) -> Mapping[int, int]:
        """Thread id → what threading.Thread.native_id of that thread says."""

    def polled_objects(self, tid: int) -> Sequence[PolledObject]:
        """The objects that the code of the thread's innermost Python frames looks at, between two sleeps for
        example."""

    def polled_results(self, seen: Sequence[PolledObject]) -> PythonWait | None:
        """The debtors of results that polled futures or pools stand for; None where there are none, or nobody knows."""

    def waiting_loop(self, tid: int) -> str:
        """The line of the loop that repeats the thread's wait, "" where none is known."""

    def in_signal_handler(self, tid: int) -> bool:
        """A signal handler runs in the thread, and has interrupted other Python code."""

    def asked_to_sleep(self, tid: int) -> float | None:
        """The seconds that the thread's innermost Python frame asked ``time.sleep`` for."""

    def users_of(self, address: int) -> Sequence[int]:
        """Tids of the threads that have an object among the variables of their frames."""

    @property
    def running_jobs(self) -> Mapping[int, int]:
        """concurrent.futures.Future → ident of the thread that runs its job."""

    def loops(self) -> Sequence[RunningLoop]:
        """The event loops of asyncio that have tasks, and the runners of trio."""

    def awaited(self, loop: RunningLoop, task: RunningTask) -> Awaited:
        """The object that a task of a loop waits for."""

    def loop_owing(self, future: int) -> int | None:
        """The tid of the thread whose event loop alone can complete a concurrent.futures.Future; None without one."""

    def never_began(self, found: PythonWait) -> ThreadObject | None:
        """The thread that Thread.start() waits for, where it has ended before it began."""

    def lost_executor(self, tid: int, future: int) -> LostHelpers | None:
        """The threads that should run, or hand out, the job of a future which thread ``tid`` waits for, where none of
        them runs."""

    def lost_users(self, address: int) -> Sequence[ThreadObject]:
        """The threads that run no more and still have the object at hand."""

    def lost_callers(self, found: PythonWait) -> Sequence[ThreadObject]:
        """The threads that run no more and had a method that ends the wait to call, as a Timer that was cancelled."""

    def ended_processes(self) -> Sequence[EndedProcess]:
        """The processes of multiprocessing that have ended, and were waited for."""

    def lost_pool(self, tid: int) -> LostPool | None:
        """The pool with jobs and without threads that the thread's innermost functions have at hand; None without."""

    def debtors(self, tid: int, found: PythonWait) -> Debtors | None:
        """The functions that could end the thread's wait, who is in them, and the threads that have ended."""

    def flag_debtors(self, tid: int, name: str) -> Debtors | None:
        """The functions that set a variable which the thread looks at, who is in them, and threads that have ended."""

    def question(self, tid: int) -> Question | None:
        """The question that the thread's Python functions ask somebody who should type; None for none."""

    def handled_error(self, tid: int) -> HandledError | None:
        """The exception that the thread handles; None for none."""

    def caught_error(self, tid: int) -> HandledError | None:
        """The exception that the loop which the thread sleeps in has caught in an earlier turn, and kept in a variable;
        None for none."""

    def kept_error(self, thread: PyRef) -> str:
        """The exception that a threading.Thread has among its attributes, in words; "" for none."""

    def error_in_future(self, tid: int, codes: Collection[int]) -> str:
        """The exception that came through one of those functions (addresses of their code), and that a Future keeps
        which the thread has at hand; "" for none."""

    def instruction(self, tid: int) -> tuple[int, int] | None:
        """The thread's innermost Python frame and where in its code it is, as two numbers to compare."""

    def tid_of_ident(self, ident: int) -> int | None:
        """The tid of the thread with this threading.get_ident()."""

    def has_no_thread(self, ident: int) -> bool:
        """No thread of the process has that threading.get_ident(); False where not all of them could be read."""

    def stack(self, tid: int) -> PyStack:
        """The Python frames of a thread, with the interpreter that reads their variables."""


class ProcInfo(Protocol):
    """The system's knowledge of a live process; a core knows nothing of it."""

    def descriptor(self, fd: int) -> str:
        """The object of the file descriptor (``pipe:[77]``, a path), "" where that is unknown."""

    def process(self, pid: int) -> ChildProcess:
        """Any process of the machine."""

    def children(self) -> Mapping[int, ChildProcess]:
        """The child processes by pid; empty where that is unknown."""

    def sharers(self, mapping: MemoryMapping) -> Sequence[ChildProcess] | None:
        """Parent, siblings and children that have the same shared memory; None where that is unknown."""

    def absolute(self, path: str) -> str:
        """A path that is relative to the process's current folder, from its root."""

    def file_exists(self, path: str) -> bool | None:
        """True if the process sees such a file, None where that is unknown."""

    def is_named_pipe(self, path: str) -> bool:
        """True if the process sees a named pipe there."""

    def has_open(self, path: str) -> bool | None:
        """True if any process has that file open, None where that is unknown."""

    def file_lock(self, path: str) -> Peer | None:
        """The process that has locked such a file, None where nobody has or that is unknown."""

    def open_files(self, pid: int) -> Collection[str]:
        """The objects of the descriptors of any process."""

    @property
    def machine(self) -> Machine:
        """The process's file systems and control groups."""

    @property
    def peers(self) -> PeerReader:
        """The other ends of the descriptors."""

    def forked_from(self) -> int | None:
        """The parent process, where this one is a copy of it that has not called exec."""

    def handled_signals(self) -> Sequence[int] | None:
        """The signals for which the program has handlers, but those of each program; None where that is unknown."""

    def clock(self, number: int) -> float | None:
        """The time of a clock (CLOCK_REALTIME 0, CLOCK_MONOTONIC 1) in seconds, None for any other."""
