"""What a thread can wait for or hold (Resource): one row for each kind, with everything that the program asks of it;
and why a wait may never end: only the waiter could end it (SelfWait), or the thread that should is lost (Loss)."""

from __future__ import annotations

from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from gdbext.engine.vocabulary import json_member

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Hexadecimal, Internal


class Relation(Enum):
    """How the owner of a resource relates to it."""

    HOLDS = "holds it, as a lock"
    RUNS = "runs the initializer that others wait for"
    IS = "is what is waited for: others wait for this thread to exit"
    OWES = "has yet to arrive, deliver or notify"

    @property
    def is_possession(self) -> bool:
        """The owner has it until it releases it, and is listed as holding it."""
        return self in (Relation.HOLDS, Relation.RUNS)


class Naming(Enum):
    """How the name and the address of a resource combine with the noun of its kind."""

    AFTER_ADDRESS = "the mutex 0x7f00 (config_lock)"
    OF = "the GIL of interpreter 1"
    GUARDED = "the initialization of value (guard 0x7f00)"
    IN_BRACKETS = "the device (cudaStreamSynchronize)"
    ALONE = "read on fd 5"


class WaitTraits(NamedTuple):
    """Properties that distinguish a kind of wait."""

    word: str
    """The word of the JSON report."""
    noun: str
    """The resource in a sentence, with its article."""
    naming: Naming = Naming.AFTER_ADDRESS
    doing: str = "waits for {}"
    """The words for a waiting thread; ``{}`` is the resource, or its bare name with Naming.ALONE."""
    unnamed: str = ""
    """The name of a resource that has none."""
    relation: Relation = Relation.HOLDS
    is_lock: bool = False
    """True if some thread holds it while it is waited for."""
    is_native: bool = False
    """A lock of C or C++ code, which must not be waited for with the GIL in hand."""
    may_be_lock: bool = False
    """It is a lock, or may be one: an unknown owner may close a cycle."""
    is_outside: bool = False
    """A device or another process ends it, wherever in the program it happens."""
    needs_thread: bool = True
    """Only another thread of this process ends it."""
    timeout_ends_it: bool = True
    """A timed wait of this kind gives up. (A thread that wants the GIL waits again.)"""
    handler_may_end_it: bool = False
    """A signal handler of the waiting thread may end it (signal-safety(7))."""
    told_apart_by_address: bool = False
    """Threads that wait alike at two addresses wait for two different things."""
    may_poll: bool = False
    """Code waits like this between two tests of something else."""
    heading: str = ""
    """The first words of a verdict about a wait that something outside ends; "" for "waits"."""
    advice_in_deadlock: str = ""
    advice_when_blocked: str = ""
    advice_when_outside: tuple[str, ...] = ()
    advice_in_kernel: str = ""
    """The advice about a thread that sleeps in the kernel for that."""


_RELEASE_FIRST = "Do not wait for other threads while holding what they need: release it before the wait."
_SERVES_PAGE = "Check what serves the page: the file system's server, or the holder of the userfaultfd."
_NO_OWNER = "This lock records no owner: look for a thread that is inside the same library (all-threads --stacks)."


_native_lock = partial(WaitTraits, is_lock=True, is_native=True, may_be_lock=True)
_outside_wait = partial(WaitTraits, is_outside=True, needs_thread=False)


class WaitKind(Enum):
    """The kind of a wait. The value is the word of the JSON report; the last rows tell most about a hang."""

    traits: WaitTraits

    GIL = WaitTraits("gil", "the GIL", Naming.OF, is_lock=True, may_be_lock=True, timeout_ends_it=False)
    STOP_THE_WORLD = WaitTraits(
        "stop-the-world",
        "a stop-the-world pause",
        Naming.ALONE,
        unnamed="a stop-the-world pause",
        relation=Relation.OWES,
        timeout_ends_it=False,
        advice_in_deadlock="A thread blocks in C code without releasing its thread state: release it around the "
        "blocking call (Py_BEGIN_ALLOW_THREADS), in free-threaded builds, too.",
    )
    MUTEX = _native_lock("mutex", "the mutex", told_apart_by_address=True)
    RWLOCK = _native_lock("rwlock", "the read-write lock", told_apart_by_address=True)
    CONDVAR = WaitTraits(
        "condvar",
        "the condition variable",
        relation=Relation.OWES,
        advice_in_deadlock=_RELEASE_FIRST,
        advice_when_blocked="Look for the code that should notify it: the notification was lost or its thread has "
        "exited.",
    )
    SEMAPHORE = WaitTraits("semaphore", "the semaphore", handler_may_end_it=True)
    PYTHON_LOCK = WaitTraits(
        "python-lock",
        "the Python lock",
        is_lock=True,
        may_be_lock=True,
        advice_when_blocked="A threading.Lock does not record its owner; a threading.RLock, used instead, does.",
    )
    OBJECT_LOCK = WaitTraits(
        "object-lock",
        "the lock of the object",
        is_lock=True,
        may_be_lock=True,
        advice_in_deadlock="A free-threaded Python locks a dict or a list while C code works on it: code that it "
        "calls (a key's __eq__ or __hash__, a callback) must not wait for another thread.",
    )
    STATIC_INIT = _native_lock(
        "static-init",
        "the initialization of",
        Naming.GUARDED,
        unnamed="a static variable",
        relation=Relation.RUNS,
        told_apart_by_address=True,
        advice_in_deadlock="Run the initializer once at import time, before threads start (call the operator once), "
        "or keep Python out of it: the guard of a static variable is a lock, too.",
    )
    ONCE = _native_lock("once", "the one-time initialization", relation=Relation.RUNS, told_apart_by_address=True)
    LOADER_LOCK = _native_lock("loader-lock", "the dynamic loader's lock")
    LIBC_LOCK = _native_lock("libc-lock", "the C library lock", advice_when_blocked=_NO_OWNER)
    JOIN = WaitTraits(
        *("join", "the end of", Naming.ALONE, "waits to join {}", "a thread", Relation.IS),
        advice_in_deadlock=_RELEASE_FIRST,
    )
    BARRIER = WaitTraits("barrier", "the barrier", relation=Relation.OWES, advice_in_deadlock=_RELEASE_FIRST)
    WORKER_POOL = WaitTraits(
        *("worker-pool", "worker threads", Naming.IN_BRACKETS),
        relation=Relation.OWES,
        advice_in_deadlock=_RELEASE_FIRST,
    )
    QUEUE = WaitTraits("queue", "the queue", relation=Relation.OWES, advice_in_deadlock=_RELEASE_FIRST)
    FUTEX = WaitTraits("futex", "the unidentified futex", may_be_lock=True, advice_when_blocked=_NO_OWNER)
    IO = WaitTraits(
        "io",
        "io",
        Naming.ALONE,
        "waits in {}",
        relation=Relation.OWES,
        needs_thread=False,
        heading="waits for input or output",
        advice_when_blocked="Check the other end of the fd: the peer is stuck, or keeps it open without writing.",
        advice_in_kernel="Check the device, or the server of that file system: the kernel waits for its "
        "answer (dmesg).",
    )
    PAGE = WaitTraits(
        "page",
        "a page of memory",
        Naming.ALONE,
        needs_thread=False,
        advice_when_blocked=_SERVES_PAGE,
        advice_in_kernel=_SERVES_PAGE,
    )
    CHILD_PROCESS = _outside_wait("child-process", "child-process", Naming.ALONE, heading="waits for a child process")
    SLEEP = WaitTraits(
        "sleep", "sleep", Naming.ALONE, "{}", "sleeps", needs_thread=False, may_poll=True, heading="sleeps"
    )
    DEVICE = _outside_wait(
        "device",
        "the device",
        Naming.IN_BRACKETS,
        heading="waits for the device",
        advice_when_outside=("Check the device with nvidia-smi; rerun with CUDA_LAUNCH_BLOCKING=1.",),
    )
    COLLECTIVE = _outside_wait(
        "collective",
        "the other ranks",
        Naming.IN_BRACKETS,
        relation=Relation.OWES,
        heading="waits for other ranks",
        advice_when_outside=(
            "A rank has not reached this collective, or is in another one.",
            "TORCH_DISTRIBUTED_DEBUG=DETAIL makes the next run check that all ranks call the same collectives.",
        ),
    )

    def __new__(cls, *traits: Any) -> WaitKind:
        member = object.__new__(cls)
        member.traits = WaitTraits(*traits)
        member._value_ = member.traits.word
        return member

    @property
    def priority(self) -> int:
        """Among several waits, the one with the lowest priority tells most about a hang: the last rows above."""
        return -list(WaitKind).index(self)


_NO_LOCK_IN_CALLBACKS = (
    "Finalizers and weakref callbacks run at any moment, in any thread: they must take no lock. Use "
    "queue.SimpleQueue, which is reentrant, or leave the work to another thread."
)


class SelfWait(Enum):
    """Why a thread waits for what only itself could give; the value is a clause, ``advice`` says how to avoid it."""

    advice: str

    SIGNAL = (
        "a signal handler interrupted the code that holds it",
        "A signal handler must not take a lock, so it must not log or put items into a queue.Queue: set a flag in it, "
        "write to signal.set_wakeup_fd(), or use queue.SimpleQueue.",
    )
    FINALIZER = ("a finalizer (__del__) interrupted the code that holds it", _NO_LOCK_IN_CALLBACKS)
    WEAKREF = ("the callback of a weak reference interrupted the code that holds it", _NO_LOCK_IN_CALLBACKS)
    POOL = (
        "it is the only worker of the pool that should run the job",
        "A job must not wait for a job of its own pool: run those jobs in another pool.",
    )
    EVENT_LOOP = (
        "its event loop must complete it, and this wait blocks that loop",
        "Never block inside an event loop: await asyncio.wrap_future(future), or move the "
        "blocking call to loop.run_in_executor().",
    )
    SERVER = (
        "it waits for an answer of its own process, but blocks the event loop that would answer",
        "An async handler must not block: await an asynchronous client (httpx.AsyncClient, aiohttp), make the "
        "handler a plain def where the server runs those in threads, or call the function instead of the URL.",
    )

    def __new__(cls, value: str, advice: str) -> SelfWait:
        member = object.__new__(cls)
        member._value_, member.advice = value, advice
        return member


class Loss(Enum):
    """How a thread was lost. The value is the word of the JSON report."""

    singular: str
    """The words after the name of one thread."""
    plural: str
    advice: str

    ENDED = (
        "ended",
        "has exited",
        "have exited",
        "Look for that thread's traceback in the process's output, and make its failure visible: "
        "try/finally around its loop, future.set_exception(), or a sentinel in the queue.",
    )
    NEVER_BEGAN = (
        "never-began",
        "exited before it started to run",
        "exited before they started to run",
        "The thread could not start (memory or another limit): check the process's output, then kill it.",
    )
    LEFT_BEHIND = (
        "left-behind",
        "was started before the fork; here it does not exist",
        "were started before the fork; here they do not exist",
        "Or start that thread again in the child: os.register_at_fork(after_in_child=…).",
    )

    KILLED = (
        "killed",
        "was killed",
        "were killed",
        "Read why it was killed (dmesg: the OOM killer; its own output), end the process that holds its pipe, and "
        "start the worker again.",
    )
    """A worker process, not a thread: the lost one's sentence is its ``no_waker_clause``."""

    def __new__(cls, value: str, singular: str, plural: str, advice: str) -> Loss:
        member = object.__new__(cls)
        member._value_ = value
        member.singular, member.plural, member.advice = singular, plural, advice
        return member


class LostThread(NamedTuple):
    """Threads that should end a wait, and that are not in this process."""

    threads: tuple[str, ...]
    """Their names; empty if no object of an exited thread is left in memory."""
    loss: Loss
    recorded: bool = False
    """The object that is waited for records which threads should act."""
    error: str = ""
    """The exception that a lost thread has left in memory, or a future of the call that should have ended the wait."""
    does: Internal[str] = ""
    """Their work for the waiting thread: ``hands out the jobs``."""
    no_waker_clause: Internal[str] = ""
    """A clause with the functions that could end the wait: ``no thread is in load (train.py:4), which calls set()``."""
    is_proven: Internal[bool] = False
    """The thread's name contains its function, and that function could end the wait."""

    @json_member(after="error")
    def summary(self) -> str:
        """``the thread loader has ended, and no thread is in load (train.py:4), which calls set() on it``."""
        if not self.threads:
            kept = f"; a future holds {self.error}, which was raised there" if self.error else ""
            return f"{self.no_waker_clause}{kept}"
        count = len(self.threads)
        names = ", ".join(self.threads[:3]) + (f" and {count - 3} more" if count > 3 else "")
        does = f", which {self.does}," if self.does else ""
        loss = self.loss.plural if count > 1 else self.loss.singular
        text = f"the thread{'s' if count > 1 else ''} {names}{does} {loss}"
        text += f" (its exception: {self.error})" if self.error else ""
        return f"{text}, and {self.no_waker_clause}" if self.no_waker_clause else text


class Resource(NamedTuple):
    """Something a thread can wait for or hold. ``address`` is that of the lock, guard, semaphore, … or 0."""

    kind: WaitKind
    address: Hexadecimal
    name: str = ""
    """The name, for people only: code uses other fields."""
    variable: Internal[str] = ""
    """The variable that holds it in the program's code: ``self.stats_lock``."""

    @property
    def wait_phrase(self) -> str:
        """The wait for it in words: ``waits for the mutex 0x7f00 (config_lock)``, ``sleeps``."""
        traits = self.kind.traits
        is_alone = traits.naming is Naming.ALONE
        return traits.doing.format((self.name or traits.unnamed) if is_alone else self.phrase)

    @property
    def phrase(self) -> str:
        """The resource with name and address: ``the mutex 0x7f00 (config_lock)``."""
        traits, name = self.kind.traits, self.name or self.kind.traits.unnamed
        if traits.naming is Naming.OF:
            return f"{traits.noun} of {name}" if name else traits.noun
        if traits.naming is Naming.GUARDED:
            return f"{traits.noun} {name} (guard {self.address:#x})"
        if traits.naming is Naming.ALONE and self.name:
            return self.name
        if traits.naming is Naming.IN_BRACKETS and self.name:
            return f"{traits.noun} ({self.name})"
        at = f" {self.address:#x}" if self.address else ""
        named = ": ".join(filter(None, (self.name, self.variable)))
        return f"{traits.noun}{at}{f' ({named})' if named else ''}"
