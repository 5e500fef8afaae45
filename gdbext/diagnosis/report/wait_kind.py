"""What a thread can wait for: one row for each kind, with all that the rest of the program asks of it.

A new kind is a row here and a recognizer in waits/; kinds are listed nowhere else. A wait may never end if a thread
waits for what only itself could give (SelfWait), or if the thread that should end it is lost (Loss).
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.vocabulary import json_member

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Internal


class Relation(Enum):
    """How the owner of a resource relates to it."""

    HOLDS = "holds it, as a lock"
    RUNS = "runs the initialiser that others wait for"
    IS = "is what is waited for: a thread whose end others await"
    OWES = "has yet to arrive, deliver or notify"

    @property
    def is_possession(self) -> bool:
        """The owner has it until it lets go, and is listed as holding it."""
        return self in (Relation.HOLDS, Relation.RUNS)


class Naming(Enum):
    """How the name and the address of a resource combine with the noun of its kind."""

    AFTER_ADDRESS = "the mutex 0x7f00 (config_lock)"
    OF = "the GIL of interpreter 1"
    GUARDED = "the initialisation of value (guard 0x7f00)"
    IN_BRACKETS = "the device (cudaStreamSynchronize)"
    ALONE = "read on fd 5"


class WaitTraits(NamedTuple):
    """Properties that distinguish a kind of wait."""

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
    """It is a lock, or may be one: an owner that nobody knows may close a cycle."""
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
    """Code waits so between two looks at something else."""
    heading: str = ""
    """The first words of a verdict about a wait that something outside ends; "" for "waits"."""
    advice_in_deadlock: str = ""
    advice_when_blocked: str = ""
    advice_when_outside: tuple[str, ...] = ()
    advice_in_kernel: str = ""
    """The advice about a thread that sleeps in the kernel for that."""


_RELEASE_FIRST = "Do not wait for other threads while holding what they need: release it before the wait."
_SERVES_PAGE = "Look at who serves the page: the file system's server, or the holder of the userfaultfd."
_NO_OWNER = "This lock records no owner: look for a thread that is inside the same library (all-threads --stacks)."


class WaitKind(Enum):
    """The kind of a wait. The value is the word of the JSON report; the last rows tell most about a hang."""

    traits: WaitTraits

    GIL = "gil", WaitTraits("the GIL", Naming.OF, is_lock=True, may_be_lock=True, timeout_ends_it=False)
    STOP_THE_WORLD = (
        "stop-the-world",
        WaitTraits(
            "a stop-the-world pause",
            Naming.ALONE,
            "waits for {}",
            "a stop-the-world pause",
            Relation.OWES,
            timeout_ends_it=False,
            advice_in_deadlock="A thread waits in C code without letting go of its thread state: "
            "release it around what "
            "blocks (Py_BEGIN_ALLOW_THREADS), in free-threaded builds, too.",
        ),
    )
    MUTEX = "mutex", WaitTraits("the mutex", is_lock=True, is_native=True, may_be_lock=True, told_apart_by_address=True)
    RWLOCK = (
        "rwlock",
        WaitTraits("the read-write lock", is_lock=True, is_native=True, may_be_lock=True, told_apart_by_address=True),
    )
    CONDVAR = (
        "condvar",
        WaitTraits(
            "the condition variable",
            relation=Relation.OWES,
            advice_in_deadlock=_RELEASE_FIRST,
            advice_when_blocked="Look for the code that should notify it: the notification was lost or its thread has "
            "ended.",
        ),
    )
    SEMAPHORE = "semaphore", WaitTraits("the semaphore", handler_may_end_it=True)
    PYTHON_LOCK = (
        "python-lock",
        WaitTraits(
            "the Python lock",
            is_lock=True,
            may_be_lock=True,
            advice_when_blocked="A threading.Lock does not record its owner; put a threading.RLock in its place, which "
            "does.",
        ),
    )
    OBJECT_LOCK = (
        "object-lock",
        WaitTraits(
            "the lock of the object",
            is_lock=True,
            may_be_lock=True,
            advice_in_deadlock="A free-threaded Python locks a dict or a list while C code works on it: let nothing in "
            "there wait for another thread (a key's __eq__ or __hash__, a callback).",
        ),
    )
    STATIC_INIT = (
        "static-init",
        WaitTraits(
            "the initialisation of",
            Naming.GUARDED,
            unnamed="a static variable",
            relation=Relation.RUNS,
            is_lock=True,
            is_native=True,
            may_be_lock=True,
            told_apart_by_address=True,
            advice_in_deadlock="Run the initialiser once at import time, "
            "before threads start (call the operator once), "
            "or keep Python out of it: a static's guard is a lock like any other.",
        ),
    )
    ONCE = (
        "once",
        WaitTraits(
            "a one-time initialisation", is_lock=True, is_native=True, may_be_lock=True, told_apart_by_address=True
        ),
    )
    LOADER_LOCK = "loader-lock", WaitTraits("the dynamic loader's lock", is_lock=True, is_native=True, may_be_lock=True)
    LIBC_LOCK = (
        "libc-lock",
        WaitTraits(
            "a lock inside the C library", is_lock=True, is_native=True, may_be_lock=True, advice_when_blocked=_NO_OWNER
        ),
    )
    JOIN = (
        "join",
        WaitTraits(
            "the end of",
            Naming.ALONE,
            "waits for the end of {}",
            "a thread",
            Relation.IS,
            advice_in_deadlock=_RELEASE_FIRST,
        ),
    )
    BARRIER = "barrier", WaitTraits("the barrier", relation=Relation.OWES, advice_in_deadlock=_RELEASE_FIRST)
    WORKER_POOL = (
        "worker-pool",
        WaitTraits("worker threads", Naming.IN_BRACKETS, relation=Relation.OWES, advice_in_deadlock=_RELEASE_FIRST),
    )
    QUEUE = "queue", WaitTraits("the queue", relation=Relation.OWES, advice_in_deadlock=_RELEASE_FIRST)
    FUTEX = "futex", WaitTraits("an unidentified futex", may_be_lock=True, advice_when_blocked=_NO_OWNER)
    IO = (
        "io",
        WaitTraits(
            "io",
            Naming.ALONE,
            "waits in {}",
            relation=Relation.OWES,
            needs_thread=False,
            heading="waits for input or output",
            advice_when_blocked="Look at the other end of the descriptor: the peer is stuck, or keeps it open without "
            "writing.",
            advice_in_kernel="Look at the device, or at the server of that file system: the kernel waits for its "
            "answer (dmesg).",
        ),
    )
    PAGE = (
        "page",
        WaitTraits(
            "a page of memory",
            Naming.ALONE,
            needs_thread=False,
            advice_when_blocked=_SERVES_PAGE,
            advice_in_kernel=_SERVES_PAGE,
        ),
    )
    CHILD_PROCESS = (
        "child-process",
        WaitTraits(
            "child-process", Naming.ALONE, is_outside=True, needs_thread=False, heading="waits for a child process"
        ),
    )
    SLEEP = (
        "sleep",
        WaitTraits("sleep", Naming.ALONE, "{}", "sleeps", needs_thread=False, may_poll=True, heading="sleeps"),
    )
    DEVICE = (
        "device",
        WaitTraits(
            "the device",
            Naming.IN_BRACKETS,
            is_outside=True,
            needs_thread=False,
            heading="waits for the device",
            advice_when_outside=(
                "The device works or hangs: look at it (nvidia-smi), and run with CUDA_LAUNCH_BLOCKING=1.",
            ),
        ),
    )
    COLLECTIVE = (
        "collective",
        WaitTraits(
            "the other ranks",
            Naming.IN_BRACKETS,
            relation=Relation.OWES,
            is_outside=True,
            needs_thread=False,
            heading="waits for other ranks",
            advice_when_outside=(
                "A rank has not come to this collective, or is in another one.",
                "TORCH_DISTRIBUTED_DEBUG=DETAIL makes the next run check that all ranks call the same collectives.",
            ),
        ),
    )

    def __new__(cls, value: str, traits: WaitTraits) -> WaitKind:
        member = object.__new__(cls)
        member._value_ = value
        member.traits = traits
        return member

    @property
    def priority(self) -> int:
        """Among several waits, the one with the lowest priority tells most about a hang: the last rows above."""
        return -list(WaitKind).index(self)


class SelfWait(Enum):
    """Why a thread waits for what only itself could give; the value is a clause."""

    SIGNAL = "a signal handler interrupted the code that holds it"
    FINALIZER = "a finaliser (__del__) interrupted the code that holds it"
    WEAKREF = "the callback of a weak reference interrupted the code that holds it"
    POOL = "it is the only worker of the pool that should run the job"
    EVENT_LOOP = "only the event loop that it blocks could complete it"
    SERVER = "it is connected to its own process, where only the event loop that it blocks could accept and answer"

    @property
    def advice(self) -> str:
        """How to write such code."""
        if self is SelfWait.EVENT_LOOP:
            return (
                "Inside of an event loop await, and never block: await asyncio.wrap_future(future), or leave the "
                "blocking call to loop.run_in_executor()."
            )
        if self is SelfWait.SERVER:
            return (
                "An async handler must not block: await an asynchronous client (httpx.AsyncClient, aiohttp), make the "
                "handler a plain def where the server runs those in threads, or call the function instead of the URL."
            )
        if self is SelfWait.POOL:
            return "A job must not wait for a job of its own pool: give those jobs a pool of their own."
        if self is SelfWait.SIGNAL:
            return (
                "A signal handler must take no lock, and so must not log or put into a queue.Queue: set a flag in it, "
                "write to signal.set_wakeup_fd(), or use queue.SimpleQueue."
            )
        return (
            "Finalisers and weakref callbacks run at any moment, in any thread: they must take no lock. Use "
            "queue.SimpleQueue, which is reentrant, or leave the work to another thread."
        )


class Loss(Enum):
    """How a thread was lost. The value is the word of the JSON report."""

    of_one: str
    """The words for one thread, behind its name."""
    of_many: str
    """The words for several threads."""
    advice: str

    ENDED = (
        "ended",
        "has ended",
        "have ended",
        "Look for that thread's traceback in what the process has written, and let each end of it be heard: "
        "try/finally around its loop, future.set_exception(), an item that says so in the queue.",
    )
    NEVER_BEGAN = (
        "never-began",
        "ended before it began to run",
        "ended before they began to run",
        "Memory, or another limit, was short when the thread should begin: see what the process has "
        "written, and end it.",
    )
    LEFT_BEHIND = (
        "left-behind",
        "was started before the fork; here it does not exist",
        "were started before the fork; here they do not exist",
        "Or start that thread again in the child: os.register_at_fork(after_in_child=…).",
    )

    def __new__(cls, value: str, of_one: str, of_many: str, advice: str) -> Loss:
        member = object.__new__(cls)
        member._value_ = value
        member.of_one, member.of_many, member.advice = of_one, of_many, advice
        return member


class LostThread(NamedTuple):
    """Threads that should end a wait, and that are not in this process."""

    threads: tuple[str, ...]
    """Their names; empty where no object of one that has ended is left in memory."""
    loss: Loss
    recorded: bool = False
    """The object that is waited for says whose work it is."""
    error: str = ""
    """The exception that a lost thread has left in memory, or a future of the call that should have ended the wait."""
    does: Internal[str] = ""
    """Their work for the one that waits: ``hands out the jobs``."""
    nobody: Internal[str] = ""
    """The functions that could end the wait, in a clause: ``no thread is in load (train.py:4), which calls set()``."""
    is_proven: Internal[bool] = False
    """The name of the thread has its function, and that function could end the wait."""

    @json_member(after="error")
    def summary(self) -> str:
        """``the thread loader has ended, and no thread is in load (train.py:4), which calls set() of it``."""
        if not self.threads:
            kept = f"; a future has kept {self.error}, which was raised there" if self.error else ""
            return f"{self.nobody}{kept}"
        count = len(self.threads)
        names = ", ".join(self.threads[:3]) + (f" and {count - 3} more" if count > 3 else "")
        does = f", which {self.does}," if self.does else ""
        text = (
            f"the thread{'s' if count > 1 else ''} {names}{does} {self.loss.of_many if count > 1 else self.loss.of_one}"
        )
        text += f" ({self.error} is what it has left)" if self.error else ""
        return f"{text}, and {self.nobody}" if self.nobody else text
