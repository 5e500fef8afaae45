"""One thread as it is reported: its frames, variables, event loop, backward nodes, and its progress."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.abi.assumed_names import is_below_library

if TYPE_CHECKING:
    from collections.abc import Hashable

    from gdbext.diagnosis.report.wait import Wait
    from gdbext.diagnosis.report.wait_kind import Resource
    from gdbext.diagnosis.waits.pool_table import Pool
    from gdbext.engine.vocabulary import Hexadecimal, Inline, Internal, Sparse
    from gdbext.torch.stack import DispatchFrame
    from gdbext.torch.state.dispatch_state_reader import DispatchState


class FrameKind(Enum):
    """The kind of a frame: native or Python."""

    NATIVE = "native"
    PYTHON = "python"


def is_users_file(file: str) -> bool:
    """The file of Python code is outside of Python's library and site-packages."""
    folders = ("/site-packages/", "/dist-packages/")
    return file[:1] != "<" and not is_below_library(file) and not any(folder in file for folder in folders)


class LocalVariable(NamedTuple):
    """A variable of a Python frame; ``text`` is its value, shortened, like repr()."""

    name: str
    type: str
    text: str


class Frame(NamedTuple):
    """A frame. ``level``: native frames count from the innermost, 0; Python frames have their evaluator's level."""

    level: int
    kind: FrameKind
    pc: Hexadecimal | None
    function: str
    module: str = ""
    file: str = ""
    line: int | None = None
    role: str = ""
    variables: Sparse[tuple[LocalVariable, ...]] = ()
    """The variables of a Python frame, arguments first; empty unless asked for."""
    hidden_variables: Internal[str] = ""
    """Text about variables that are not shown: "3 more (dispatch-bt --locals)", "not in the recording"."""

    def without_values(self) -> Frame:
        """The frame with its variables' names and types, without their values."""
        return self._replace(variables=tuple(variable._replace(text="?") for variable in self.variables))

    @property
    def fold_key(self) -> Hashable:
        """A key that is equal for two frames of a recursion, so that they can be folded."""
        return (self.kind, self.pc, self.function, self.module, self.file, self.line, self.role)

    @property
    def is_users(self) -> bool:
        """The frame runs Python code outside of Python's library and site-packages."""
        return self.kind is FrameKind.PYTHON and is_users_file(self.file)

    @property
    def place(self) -> str:
        """The place in words: ``train.py:8 (step)``."""
        return f"{self.file}:{self.line if self.line is not None else '?'} ({self.function})"


class BackwardNode(NamedTuple):
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


class AsyncTask(NamedTuple):
    """One task that is not done."""

    name: str
    address: Hexadecimal
    state: TaskState
    awaits: str = ""
    """The object that it waits for: ``the lock 0x7f00 (asyncio.Lock), which reader seems to hold``; for people."""
    needs: tuple[Hexadecimal, ...] = ()
    """Addresses of the tasks that it waits for: it awaits them, or the lock that they hold."""
    timed: bool = False
    """It gives up after some time."""
    frames: tuple[Frame, ...] = ()
    """Its coroutines, innermost first; empty for one that runs, whose frames are on the thread's stack."""
    inferred: Internal[bool] = False
    """True if the tasks that it needs are concluded from the blocks that those tasks are in."""
    sleeps: Internal[bool] = False
    """True if all that the task does is asyncio.sleep()."""
    label: Internal[str] = ""
    """The task as a sentence names it: by its name, or by ``place`` if it has no name of its own."""
    place: Internal[str] = ""
    """The innermost function of the program's own code that it is in: ``fetch (app.py:7)``; "" if unknown."""
    awaited_kind: Internal[str] = ""
    """The kind of what it waits for; "" if it does not wait."""
    only_from_here: Internal[bool] = False
    """True if only code of this process ends its wait: that for tasks, or for a lock, event or queue of asyncio."""

    @property
    def called(self) -> str:
        return self.label or self.name


class EventLoop(NamedTuple):
    """One loop. ``kind`` is its type, ``ready`` how many callbacks are due, None if unknown."""

    tasks: tuple[AsyncTask, ...]
    """The tasks of the event loop that this thread runs."""
    address: Internal[int] = 0
    kind: Internal[str] = ""
    tid: Internal[int | None] = None
    ready: Internal[int | None] = None
    watches_itself: Internal[bool] = False
    """True if nothing outside of the process can wake it: no timer, no signal's handler, no descriptor of others."""
    always_timed: Internal[bool] = False
    """True of trio's, whose sleep ends once a day without a reason: that it is timed tells nothing."""
    ended: Internal[tuple[str, ...]] = ()
    """The tasks that ended with an exception which was never retrieved, for people: ``the task producer failed with
    ValueError('x'), raised in …``."""

    @property
    def groups(self) -> list[list[AsyncTask]]:
        """The tasks that do not run, with equal ones together: at one place, in a wait of one kind. The largest group
        is first, and of equal size the first by name."""
        groups: dict[Hashable, list[AsyncTask]] = {}
        for task in self.tasks:
            if task.state is not TaskState.RUNNING:
                key = (task.state, task.place or task.address, task.awaited_kind)
                groups.setdefault(key, []).append(task)
        return sorted(groups.values(), key=len, reverse=True)

    @property
    def is_stuck(self) -> bool:
        """Nothing in the loop will ever wake one of its tasks: another thread of the process must."""
        waits = all(task.state is TaskState.WAITING and task.only_from_here and not task.timed for task in self.tasks)
        return self.watches_itself and self.ready == 0 and bool(self.tasks) and waits

    @property
    def awaits_nothing_outside(self) -> bool:
        """Each task waits for what code of this process ends, or for a time."""
        waits = (task.state is TaskState.WAITING and (task.only_from_here or task.sleeps) for task in self.tasks)
        return bool(self.tasks) and all(waits)

    @property
    def only_sleeps(self) -> bool:
        """Each task is in asyncio.sleep(), or waits for tasks that are: no other code need act."""
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
    """It used the CPU without leaving one function."""
    STUCK = "stuck"
    """Nothing that is measured changed."""
    NEW = "new"
    """It was not there at first."""
    ENDED = "ended"


class ThreadProgress(NamedTuple):
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


class ThreadReport(NamedTuple):
    """All that is known of one thread."""

    tid: int
    number: int | None = None
    name: str | None = None
    python_name: str | None = None
    signal: str | None = None
    state: RunState = RunState.RUNNING
    wait: Wait | None = None
    holds: tuple[Resource, ...] = ()
    dispatch: tuple[DispatchFrame, ...] = ()
    dispatch_doubt: str | None = None
    """Why ``dispatch`` may lack frames (torch's file is missing, the stack ends early); None if it is complete."""
    python_frames: tuple[Frame, ...] = ()
    """Python frames alone; ``level`` is that of the native frame that evaluates them."""
    frame_count: int = 0
    notes: tuple[str, ...] = ()
    """Notes on what could not be read of this thread, and why its walk ended."""
    tls: Sparse[DispatchState | None] = None
    """The thread-local state of dispatch; None unless asked for."""
    loop: Inline[EventLoop | None] = None
    """The event loop of asyncio that this thread runs."""
    backward: Sparse[tuple[BackwardNode, ...]] = ()
    """The nodes of autograd's graph that run on its stack, innermost first; empty unless asked for."""
    frames: Sparse[tuple[Frame, ...]] = ()
    """Native and Python frames merged, innermost first. Empty unless asked for."""
    pool: Internal[Pool | None] = None
    """The pool whose idle worker this thread is, None for any other thread."""
    native_place: Internal[str] = ""
    """The native function that the thread runs, with its library: ``crc32_z (libz.so.1)``; else ""."""
    stack_key: Internal[int] = 0
    """Equal for threads with equal stacks; 0 where the stack is unknown."""

    @property
    def label(self) -> str:
        """The thread for people: its Python name, else the kernel's, with the tid."""
        name = self.python_name or self.name
        return f"{name} (tid {self.tid})" if name else f"thread {self.tid}"

    def without_values(self) -> ThreadReport:
        """The report without values of variables and arguments, for a thread that ran while memory was read: its stack
        was copied, but values elsewhere may belong to another call."""
        return self._replace(
            dispatch=tuple(step.without_values() for step in self.dispatch),
            frames=tuple(frame.without_values() for frame in self.frames),
            python_frames=tuple(frame.without_values() for frame in self.python_frames),
        )

    @property
    def innermost(self) -> DispatchFrame | None:
        """The innermost frame of the dispatcher, None for a thread outside of it."""
        return self.dispatch[0] if self.dispatch else None

    @property
    def python_line(self) -> str:
        """The innermost Python line, ``train.py:8 (step)``, "" if there is none."""
        return self.python_frames[0].place if self.python_frames else ""

    @property
    def doing(self) -> str:
        """Where it runs: the user's line, the library's line that it called, the native function; "" if unknown."""
        user, inner = self.user_line, self.python_line
        called = f", in {inner}" if user and inner != user else ""
        python = f"{user or inner}{called}"
        return python + f"{', in ' if python else ''}{self.native_place}" if self.native_place else python

    @property
    def user_line(self) -> str:
        """The innermost Python line outside of Python's library and site-packages, "" if there is none."""
        return self.user_frame.place if self.user_frame else ""

    @property
    def waits_in_user_code(self) -> bool:
        """It waits at a line of the user's code, and the wait neither ends by itself nor is over."""
        wait = self.wait
        if not wait or self.state is not RunState.WAITING or not self.user_line or wait.being_released:
            return False
        return not wait.ends_by_itself or bool(wait.detail.repeated_at or wait.detail.looks_for)

    @property
    def user_frame(self) -> Frame | None:
        """The innermost Python frame outside of Python's library and site-packages, None if there is none."""
        return next((frame for frame in self.python_frames if frame.is_users), None)
