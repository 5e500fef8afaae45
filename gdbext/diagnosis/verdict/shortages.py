"""Things that a process has too little of: memory, tasks, descriptors, space; and the record of such a reason.

Nothing is read here: see slow_reasons.py, which has the other reasons and ranks all.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait_detail import NO_ERROR, Refused
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.engine.vocabulary import byte_size, counted, of_many

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gdbext.cpython.threads.garbage_collector import GcRun
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot
    from gdbext.engine.targets.system.surroundings import Surroundings
    from gdbext.engine.vocabulary import Internal


_STALLED = 20.0
"""Percent of time in which all threads of a group waited for memory."""
_SHOWN = 3
"""File systems that a sentence names."""


class ExplanationKind(Enum):
    """The value is the word of the JSON report."""

    QUOTA = "quota"
    AFFINITY = "affinity"
    TASKS = "tasks"
    DESCRIPTORS = "descriptors"
    MEMORY = "memory"
    SPACE = "space"
    OVERSUBSCRIPTION = "oversubscription"
    OTHER_PROCESSES = "other-processes"
    GARBAGE_COLLECTION = "garbage-collection"
    RECOMPILATION = "recompilation"
    COMPILING = "compiling"
    SUBNORMALS = "subnormals"
    GIL = WaitKind.GIL.value
    LOCK_CONVOY = "lock-convoy"
    ONE_THREAD = "one-thread"


class Explanation(NamedTuple):
    """A reason why the process may be slow, what speaks for it and against it. ``summary`` is a clause, ``weight`` from
    0 to 1."""

    kind: ExplanationKind
    summary: str
    for_: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    weight: float = 0.3
    proven: bool = False
    starves: Internal[bool] = False
    """The process hardly runs because of it, or cannot have what it asks for."""
    cure: Internal[str] = ""


class Facts(NamedTuple):
    """Everything that explanations are made from."""

    process: ProcessSnapshot
    threads: Sequence[ThreadReport]
    around: Surroundings | None
    environ: Mapping[str, str]
    recompiled: Callable[[], int]
    full_file_systems: Callable[[], Sequence[str]] = tuple
    """The file systems on which nothing can be written any more, of those where the process has files open."""
    subnormals: Callable[[], Sequence[tuple[str, float]]] = tuple
    """The tensors of running operators, with the share of subnormal numbers in each."""
    own_threads: Callable[[], int | None] = lambda: None
    """The number that torch.set_num_threads() was given."""
    collection: Callable[[], GcRun | None] = lambda: None
    """The run of Python's garbage collector."""
    compiling_since: Callable[[int], float | None] = lambda _: None
    """Seconds for which a thread has compiled."""
    expression_size: Callable[[int], int | None] = lambda _: None
    """Parts of the expression that a thread simplifies with SymPy."""

    @property
    def running(self) -> list[ThreadReport]:
        """The threads that run at this moment."""
        return [each for each in self.threads if each.state is RunState.RUNNING]

    def variables(self, names: Sequence[str]) -> list[str]:
        """``OMP_NUM_THREADS=1``, of those that are set."""
        return [f"{name}={self.environ[name]}" for name in names if name in self.environ]


def short_of_memory(facts: Facts) -> Iterator[Explanation]:
    """The control group slows the process down, takes its pages away, or waits for memory."""
    around = facts.around
    use = around.memory if around else None
    if not around or not use or around.seconds is None:
        return
    faults = sum(each.major_faults or 0 for each in around.threads)
    stalled = (f"all threads waited for memory {use.stalled:g} % of the last 10 s",) if use.stalled else ()
    told = (*stalled, *((f"{counted(faults, 'page')} had to be read from a disk again",) if faults else ()))
    text = ""
    if use.slowed and use.high is not None:
        text = (
            f"its memory is above memory.high ({byte_size(use.used)} of {byte_size(use.high)}), "
            "for which the kernel slows "
        )
        text += f"it down ({counted(use.slowed, 'time')} during the look)"
    elif use.full and use.limit is not None and (faults or (use.stalled or 0) >= 5):
        text = (
            f"its memory is at its limit ({byte_size(use.used)} of {byte_size(use.limit)}, met "
            f"{counted(use.full, 'time')} during the "
        )
        text += "look): the kernel takes pages away that are needed again"
    elif (use.stalled or 0) >= _STALLED:
        text = f"its control group waits for memory ({byte_size(use.used)} used)"
    if text:
        starves = bool(use.slowed) or (use.stalled or 0) >= 2 * _STALLED
        cure = f"Raise the limit of {use.group}, or use less memory (batch size, workers, page cache)."
        yield Explanation(ExplanationKind.MEMORY, f"{text} ({use.group})", told, (), 0.8, True, starves, cure)


def used_up(facts: Facts) -> Iterator[Explanation]:
    """Limits of processes, threads and descriptors that are reached."""
    around = facts.around
    if not around:
        return
    tasks, descriptors = around.tasks, around.descriptors
    if tasks and tasks.is_used_up and tasks.refused:
        text = (
            f"its control group may have {tasks.limit:,} processes and threads, and has {tasks.used:,}: no other one "
        )
        text += f"can be started ({tasks.refused} were refused)"
        cure = "Raise pids.max (docker --pids-limit, TasksMax), or start fewer workers and threads."
        yield Explanation(ExplanationKind.TASKS, text, (tasks.source,), (), 0.9, True, True, cure)
    if descriptors and descriptors.is_used_up:
        kinds = ", ".join(f"{count} {kind}" for kind, count in list((descriptors.kinds or {}).items())[:4])
        text = (
            f"it has {descriptors.used:,} descriptors open, and may have {descriptors.limit:,}: no file, "
            "socket or pipe "
        )
        text += f"can be opened{f' ({kinds})' if kinds else ''}"
        cure = "Close what is not needed; ulimit -n; torch.multiprocessing.set_sharing_strategy('file_system')."
        yield Explanation(ExplanationKind.DESCRIPTORS, text, (descriptors.source,), (), 0.9, True, True, cure)


_REFUSALS = {
    Refused.SPACE: (ExplanationKind.SPACE, "Free some space there (df, du), or write elsewhere (TMPDIR, --shm-size)."),
    Refused.DESCRIPTORS: (ExplanationKind.DESCRIPTORS, "Close what is not needed; ulimit -n."),
    Refused.TASKS: (ExplanationKind.TASKS, "Raise pids.max, TasksMax or ulimit -u, or start fewer threads."),
    Refused.MEMORY: (ExplanationKind.MEMORY, "Use less memory, or raise its limit (ulimit -v, memory.max)."),
}
_NEAR_LIMIT = 256 << 20
"""Bytes of address space that a thread's stack, or a library's block, may need at once."""


def refused_again(facts: Facts) -> Iterator[Explanation]:
    """Threads that try again and again to have what they are refused."""
    for thread in facts.threads:
        wait = thread.wait
        still = wait.detail.handling if wait else NO_ERROR
        error = still or (wait.detail.caught if wait else NO_ERROR)
        what = error.refused
        if what not in _REFUSALS:
            continue
        kind, usual = _REFUSALS[what]
        cause, cure = _cause(facts, what)
        cause, cure = (cause, cure) if cause or not still else _other_limit(facts, what)
        if not still and not cause:
            continue  # it may have had it by now
        text = f"{thread.label} is refused what it asks for ({error.text}), and sleeps before it tries again"
        at = (f"at {thread.python_line}",) if thread.python_line else ()
        yield Explanation(kind, f"{text}{cause}", at, (), 0.9, True, True, cure or usual)


def _cause(facts: Facts, what: Refused) -> tuple[str, str]:
    """The limit that is reached now, as a clause, and its own cure; "" where none is known to be."""
    if what is Refused.SPACE:
        full = facts.full_file_systems()
        return (f"; {' and '.join(full[:_SHOWN])} {of_many(len(full), 'is', 'are')} full" if full else ""), ""
    around = facts.around
    if not around:
        return "", ""
    space, files, users = around.address_space, around.descriptors, around.user_tasks
    if what is Refused.DESCRIPTORS and files and files.is_used_up:
        return f"; it has {files.used:,} of {files.limit:,} descriptors", ""
    if what is Refused.TASKS and around.tasks and around.tasks.is_used_up:
        return f"; its control group has {around.tasks.used:,} of {around.tasks.limit:,} processes and threads", ""
    if what is Refused.TASKS and users:
        return f"; its user may have {users.limit:,} processes and threads in all", (
            "Raise ulimit -u (RLIMIT_NPROC) of that user, or start fewer threads and processes."
        )
    if what in (Refused.TASKS, Refused.MEMORY) and space and space.limit - space.used < _NEAR_LIMIT:
        return f"; it has {byte_size(space.used)} of the {byte_size(space.limit)} of address space that it may have", (
            "Raise ulimit -v (RLIMIT_AS): a thread's stack and a library's block count, used or not."
        )
    return "", ""


def _other_limit(facts: Facts, what: Refused) -> tuple[str, str]:
    """A descriptor was refused to a process that may have more of them: inotify, for one, has limits of its own."""
    files = facts.around.descriptors if facts.around else None
    if what is not Refused.DESCRIPTORS or not files:
        return "", ""
    return f"; it has {files.used:,} of {files.limit:,} descriptors, so another limit may be reached", (
        "Look at the limits of the user and of the machine: fs.inotify.max_user_instances, fs.file-max; ulimit -n."
    )
