"""ThreadReport: one thread, as it is reported.

LocalVariable: one variable of a Python frame.

Frame: one line of a stack for people.

BackwardNode: a node of autograd's graph that runs in the frames of a stack.

EventLoop: a loop of asyncio with its tasks, each with what it awaits.

Progress: what one thread did between several samples of a process.

Finding: one thing worth saying about a process, by reference to what it is about.

FindingKind: what can be wrong with a process, strongest first.

Verdict: the answer to "why does it hang?".
"""

from __future__ import annotations

from gdbext.cpython.abi.assumed_names import is_below_library
from gdbext.engine.record import Enum, Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gdbext.diagnosis.report.wait import Resource, Wait, WaitEdge
    from gdbext.diagnosis.waits.pool_table import Pool
    from gdbext.engine.vocabulary import Absent
    from gdbext.torch.stack.dispatch_frame import DispatchFrame, DispatchStage
    from gdbext.torch.state.dispatch_state_reader import DispatchState


class FrameKind(Enum):
    """The kind of a frame: native or Python."""

    NATIVE = "native"
    PYTHON = "python"


_LIBRARIES = ("/site-packages/", "/dist-packages/")


def is_users_file(file: str) -> bool:
    """The file of Python code is outside of Python's library and site-packages."""
    return file[:1] != "<" and not is_below_library(file) and not any(folder in file for folder in _LIBRARIES)


class LocalVariable(Record):
    """A variable of a Python frame: ``text`` is a short one of its value, like repr()."""

    name: str
    type: str
    text: str


class Frame(Record):
    """One frame of a thread. ``level`` counts native frames from the innermost one, 0; a Python frame has the level
    of the native frame that evaluates it."""

    level: int
    kind: FrameKind
    function: str
    module: str = ""
    file: str = ""
    line: int | None = None
    pc: int | None = None
    role: str = ""
    variables: tuple[LocalVariable, ...] = ()
    """The variables of a Python frame, arguments first; empty unless asked for."""
    hidden_variables: str = ""
    """Text about variables that are not shown: "3 more (dispatch-bt --locals)", "not in the recording"."""

    def without_values(self) -> Frame:
        """The frame with what its variables are, and not what they hold."""
        return self._replace(variables=tuple(each._replace(text="?") for each in self.variables))

    @property
    def is_users(self) -> bool:
        """It runs Python code outside of Python's library and site-packages."""
        return self.kind is FrameKind.PYTHON and is_users_file(self.file)

    @property
    def place(self) -> str:
        """The place in words: ``train.py:8 (step)``."""
        return f"{self.file}:{self.line if self.line is not None else '?'} ({self.function})"


class BackwardNode(Record):
    """``level`` is the native frame of the engine's call; ``sequence_nr`` is known of the innermost node alone."""

    level: int
    name: str
    sequence_nr: int | None
    variable: str | None = None
    """AccumulateGrad: the tensor whose gradient it adds to."""
    made_at: str = ""
    """The line of the forward pass that made the innermost one, ``train.py:8 (step)``, where Python knows it."""

    @property
    def clause(self) -> str:
        """``the backward of MmBackward0, made at train.py:8 (step)``."""
        return f"the backward of {self.name}{f', made at {self.made_at}' if self.made_at else ''}"


class TaskState(Enum):
    """The state of a task; the value is the word of the JSON report."""

    RUNNING = "running"
    """It runs, or blocks the loop in a call that does not await."""
    READY = "ready"
    WAITING = "waiting"


class AsyncTask(Record):
    """One task that is not done."""

    name: str
    address: int
    state: TaskState
    awaits: str = ""
    """The object that it waits for: ``the lock 0x7f00 (asyncio.Lock), which reader seems to hold``; for people."""
    needs: tuple[int, ...] = ()
    """Addresses of the tasks that it waits for: it awaits them, or the lock that they hold."""
    inferred: bool = False
    """True if the tasks that it needs are concluded from the blocks that those tasks are in."""
    timed: bool = False
    """It gives up after some time."""
    sleeps: bool = False
    """True if all that the task does is asyncio.sleep()."""
    frames: tuple[Frame, ...] = ()
    """Its coroutines, innermost first; empty for one that runs, whose frames are on the thread's stack."""
    label: str = ""
    """The task as a sentence names it: by its name, or where nobody gave it one by its coroutine and line."""
    only_from_here: bool = False
    """True if only code of this process ends its wait: that for tasks, or for a lock, event or queue of asyncio."""

    @property
    def called(self) -> str:
        """The words for it in a sentence."""
        return self.label or self.name


class EventLoop(Record):
    """One loop. ``kind`` is its type, ``ready`` how many callbacks are due, None where that is not known."""

    address: int
    kind: str
    tid: int | None
    ready: int | None
    tasks: tuple[AsyncTask, ...]
    watches_itself: bool = False
    """True if nothing outside of the process can wake it: no timer, no signal's handler, no descriptor of others."""
    always_timed: bool = False
    """True of trio's, whose sleep ends once a day without a reason: that it is timed tells nothing."""
    ended: tuple[str, ...] = ()
    """The tasks that an exception has ended, for people: ``producer has ended with ValueError('x'), raised in …``."""

    @property
    def is_stuck(self) -> bool:
        """Nothing in the loop will ever wake one of its tasks: another thread of the process must."""
        waits = all(task.state is TaskState.WAITING and task.only_from_here and not task.timed for task in self.tasks)
        return self.watches_itself and self.ready == 0 and bool(self.tasks) and waits

    @property
    def awaits_nothing_outside(self) -> bool:
        """Each task waits for what code of this process ends, or for a time to come."""
        waits = (task.state is TaskState.WAITING and (task.only_from_here or task.sleeps) for task in self.tasks)
        return bool(self.tasks) and all(waits)

    @property
    def only_sleeps(self) -> bool:
        """Each task is in asyncio.sleep(), or waits for tasks that are: nobody else need do anything."""
        known = {task.address for task in self.tasks}
        return any(task.sleeps for task in self.tasks) and all(
            task.sleeps or (task.needs and known.issuperset(task.needs)) for task in self.tasks
        )

    @property
    def current(self) -> AsyncTask | None:
        """The task that runs, None while the loop waits for events."""
        return next((task for task in self.tasks if task.state is TaskState.RUNNING), None)


class Progress(Enum):
    """The value is the word of the JSON report."""

    MOVED = "moved"
    SAME_PLACE = "same-place"
    """It was at one place each time, but did something in between: it may have moved and come back."""
    SPINNING = "spinning"
    """It used the processor without leaving one place."""
    STUCK = "stuck"
    """Nothing that is measured changed: it stands still."""
    NEW = "new"
    """It was not there at first."""
    ENDED = "ended"


class ThreadProgress(Record):
    """The progress of one thread."""

    tid: int
    progress: Progress
    moved: tuple[str, ...] = ()
    """The changes between the samples; for people."""
    place: str = ""
    """The function in which a thread spins, with its library."""


class RunState(Enum):
    """The state of a thread: it runs, waits for something, or is an idle worker or prompt."""

    RUNNING = "running"
    WAITING = "waiting"
    IDLE = "idle"


class ThreadReport(Record):
    """All that is known of one thread."""

    tid: int
    name: str | None = None
    python_name: str | None = None
    number: int | None = None
    signal: str | None = None
    state: RunState = RunState.RUNNING
    wait: Wait | None = None
    holds: tuple[Resource, ...] = ()
    dispatch: tuple[DispatchFrame, ...] = ()
    unseen_dispatch: Absent | None = None
    """The reason why ``dispatch`` may lack frames (torch's file is missing, the stack ends early), None where it is
    complete."""
    frames: tuple[Frame, ...] = ()
    """Native and Python frames merged, innermost first. Empty unless asked for."""
    python: tuple[Frame, ...] = ()
    """Python frames alone; ``level`` is that of the native frame that evaluates them."""
    frame_count: int = 0
    notes: tuple[str, ...] = ()
    """Notes on what could not be read of this thread, and why its walk ended."""
    pool: Pool | None = None
    """The pool whose idle worker this thread is, None for any other thread."""
    tls: DispatchState | None = None
    """The thread-local state of dispatch; None unless asked for."""
    loop: EventLoop | None = None
    """The event loop of asyncio that this thread runs."""
    nodes: tuple[BackwardNode, ...] = ()
    """The nodes of autograd's graph that run on its stack, innermost first; empty unless asked for."""
    native_place: str = ""
    """The function and library that a thread runs which is in native code: ``crc32_z (libz.so.1)``; "" for one that
    waits, or that the interpreter itself executes."""
    stack_key: int = 0
    """Equal for threads with equal stacks; 0 where the stack is unknown."""

    @property
    def label(self) -> str:
        """The thread as people call it: its Python name, else the kernel's, with the tid."""
        name = self.python_name or self.name
        return f"{name} (tid {self.tid})" if name else f"thread {self.tid}"

    def of_two_moments(self) -> ThreadReport:
        """The report of a thread that ran on while memory was read. Its stack was copied; values that lie elsewhere
        may be those of another call, and are unknown."""
        return self._replace(
            dispatch=tuple(step.without_values() for step in self.dispatch),
            frames=tuple(frame.without_values() for frame in self.frames),
            python=tuple(frame.without_values() for frame in self.python),
        )

    @property
    def innermost(self) -> DispatchFrame | None:
        """The innermost frame of the dispatcher, None for a thread outside of it."""
        return self.dispatch[0] if self.dispatch else None

    @property
    def python_line(self) -> str:
        """The innermost Python line, ``train.py:8 (step)``, "" where there is none."""
        return self.python[0].place if self.python else ""

    @property
    def doing(self) -> str:
        """The place of a thread that runs: the user's own line, what that has called in a library, and the native
        function; "" where nothing is known of it."""
        user, inner = self.user_line, self.python_line
        called = f", in {inner}" if user and inner != user else ""
        python = f"{user or inner}{called}"
        return python + f"{', in ' if python else ''}{self.native_place}" if self.native_place else python

    @property
    def user_line(self) -> str:
        """The innermost Python line outside of Python's library and site-packages, "" where there is none."""
        return self.user_frame.place if self.user_frame is not None else ""

    @property
    def stands(self) -> bool:
        """It waits at a line of the user's own, and its wait neither ends by itself nor is over."""
        wait = self.wait
        if wait is None or self.state is not RunState.WAITING or not self.user_line or wait.being_released:
            return False
        return not wait.ends_by_itself or bool(wait.repeated_at or wait.looks_for)

    @property
    def user_frame(self) -> Frame | None:
        """The innermost Python frame outside of Python's library and site-packages, None where there is none."""
        return next((frame for frame in self.python if frame.is_users), None)


class FindingTraits(Record):
    """Properties that distinguish a kind of finding."""

    words: str
    """The kind as people are told of it, at the beginning of a line."""
    is_defect: bool = False
    """It is an error of the program, and no state that honest programs are in."""
    is_hang: bool = True
    """The process will not go on by itself; its memory is worth keeping."""
    may_be_slow: bool = False
    """One moment does not tell a hang from slow work."""
    movement_refutes_it: bool = False
    """It is refuted when its threads are elsewhere a moment later."""
    is_in_summary: bool = False
    """The summary says the kind, too: a line of text needs no words before it."""


class FindingKind(Enum):
    """The verdict kinds of the contract, strongest first, and notes. The value is the word of the JSON report."""

    traits: FindingTraits

    CRASH = "crash", FindingTraits("crashed", is_defect=True, is_in_summary=True)
    RUNAWAY_RECURSION = "runaway-recursion", FindingTraits("endless recursion", is_defect=True, is_in_summary=True)
    DEADLOCK = "deadlock", FindingTraits("deadlock", is_defect=True, movement_refutes_it=True)
    SELF_DEADLOCK = "self-deadlock", FindingTraits("waits for itself", is_defect=True, movement_refutes_it=True)
    ORPHANED_LOCK = (
        "orphaned-lock",
        FindingTraits("a lock that nobody can release", is_defect=True, movement_refutes_it=True),
    )
    MISSING_WORKERS = (
        "missing-workers",
        FindingTraits("worker threads are missing", is_defect=True, movement_refutes_it=True),
    )
    KERNEL_WAIT = "kernel-wait", FindingTraits("waits in the kernel", may_be_slow=True, movement_refutes_it=True)
    BLOCKED = "blocked", FindingTraits("stuck", is_defect=True, may_be_slow=True, movement_refutes_it=True)
    STOPPED = "stopped", FindingTraits("stopped")
    STARVED = "starved", FindingTraits("hardly gets to run", is_hang=False, may_be_slow=True)
    GIL_IN_DEVICE_CALL = (
        "gil-in-device-call",
        FindingTraits("holds the GIL while it waits for the device", may_be_slow=True, movement_refutes_it=True),
    )
    WAITING_EXTERNAL = "waiting-external", FindingTraits("waits", may_be_slow=True, movement_refutes_it=True)
    SLOW = "slow", FindingTraits("slow", is_hang=False, may_be_slow=True)
    BUSY = "busy", FindingTraits("runs", is_hang=False, may_be_slow=True)
    IDLE = "idle", FindingTraits("idle", is_hang=False, may_be_slow=True)
    NOTE = "note", FindingTraits("note", is_hang=False)

    def __new__(cls, value: str, traits: FindingTraits) -> FindingKind:
        """The member with its JSON word as value."""
        member = object.__new__(cls)
        member._value_ = value
        member.traits = traits
        return member

    @property
    def rank(self) -> int:
        """Strength of the kind: 0 is the strongest."""
        return _RANKS[self]


_RANKS = {kind: rank for rank, kind in enumerate(FindingKind)}


class ProcessStop(Record):
    """A process that somebody has stopped as a whole, and goes on when it is let."""

    signal: str = ""
    """The signal that stopped it, "" where that is not known."""
    group: str = ""
    """The frozen control group that it is in; "?" where its name cannot be read."""
    terminal: str = ""
    """The terminal that it wanted to use from the background."""
    tracer: str = ""
    """The process that traces it, and has stopped it: ``77 (gdb)``."""


class Finding(Record):
    """One finding. ``summary`` is its sentence, for people only; the other fields say what it is about."""

    kind: FindingKind
    summary: str
    threads: tuple[int, ...] = ()
    """Ids of the threads, in the order in which the sentence names them."""
    evidence: tuple[str, ...] = ()
    step: DispatchFrame | None = None
    """The operator that it is about."""
    cycle: tuple[WaitEdge, ...] = ()
    """The waits that close the circle of a deadlock."""
    wait: Wait | None = None
    """The wait at the end of the chain."""
    stop: ProcessStop | None = None
    """The stop of the whole process, of a finding that says so."""
    cures: tuple[str, ...] = ()
    """Advice that belongs to what was found, where its kind alone does not tell."""
    in_loop: bool = False
    """It is the wait of an event loop whose tasks wait for nothing outside of the process."""
    id: str = ""
    """Unique in a report (``deadlock-1``); "" for a finding that is not listed."""

    @property
    def heading(self) -> str:
        """The first words of the finding: ``deadlock``, ``polls``, ``waits for other ranks``."""
        words = self.kind.traits.words
        if self.wait is None or self.kind not in (FindingKind.WAITING_EXTERNAL, FindingKind.IDLE):
            return words
        if self.wait.polls:
            return "polls"
        if self.in_loop:
            return "the tasks of an event loop wait"
        if self.kind is FindingKind.IDLE:
            return "sleeping" if self.wait.kind.traits.may_poll else "waits"
        return self.wait.kind.traits.heading or words


class Verdict(Record):
    """The strongest finding, and what to do about it."""

    finding: Finding
    advice: tuple[str, ...] = ()
    """Steps to try next, in words and commands that fit this process."""

    @property
    def kind(self) -> FindingKind:
        """The kind of the finding that became the verdict."""
        return self.finding.kind

    @property
    def summary(self) -> str:
        """The sentence that says it."""
        return self.finding.summary

    @property
    def threads(self) -> tuple[int, ...]:
        """Ids of the threads that it is about."""
        return self.finding.threads

    @property
    def op(self) -> str | None:
        """The operator that it is about: ``aten::mm``."""
        return self.finding.step.op if self.finding.step is not None else None

    @property
    def key(self) -> str | None:
        """The dispatch key of that operator."""
        return self.finding.step.key if self.finding.step is not None else None

    @property
    def stage(self) -> DispatchStage | None:
        """The stage that the dispatcher has reached with that operator."""
        return self.finding.step.stage if self.finding.step is not None else None

    @property
    def cycle(self) -> tuple[WaitEdge, ...]:
        """The waits that close the circle of a deadlock."""
        return self.finding.cycle

    def is_about(self, finding: Finding) -> bool:
        """The finding is the one that the verdict states."""
        return bool(finding.id) and finding.id == self.finding.id

    def says(self, finding: Finding) -> bool:
        """Its sentence tells the finding, too: it is the same one, a part of it, or the same threads' chain from its
        other end."""
        mine = self.finding
        both_ways = finding.kind is mine.kind and len(mine.threads) > 1 and set(finding.threads) == set(mine.threads)
        is_part = finding.wait is not None and finding.wait is mine.wait and set(finding.threads) <= set(mine.threads)
        return self.is_about(finding) or both_ways or is_part
