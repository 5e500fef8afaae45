"""Reasons why a process that runs is slow, or hardly runs, with what speaks for and against each, ranked.

From the surroundings of the process (engine/targets/system/surroundings.py) and from what its threads do; nothing is
read here.
"""

from __future__ import annotations

from gdbext.diagnosis.report.thread_report import Frame, RunState, ThreadReport
from gdbext.diagnosis.report.wait import Refused
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.waits import pool_workers
from gdbext.engine.record import Enum, Record
from gdbext.engine.vocabulary import byte_size, counted, of_many

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from gdbext.cpython.objects.object_items import Collection
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
    from gdbext.engine.targets.system.surroundings import Surroundings, Turns


STARVED_SHARE, SLOW_SHARE = 0.5, 0.25
"""Shares of the periods in which a quota was used up, or of the time in which ready threads waited for a processor."""
_CROWDED_OUT = 0.99
"""Share of the whole look for which a thread of an ordinary priority waited, when it does not run at all. On a crowded
machine all wait for nine tenths of the time that they want, and each goes on."""
_BEHIND = 0.5
"""The part of what a thread of an ordinary priority gets of the processors, up to which one of a low priority starves
because of that: on a crowded machine all wait."""
_STOOD_STARVED, _STOOD_SLOW = 0.25, 0.1
"""Seconds a second that a group stood still."""
_IDLE = 0.3
"""Share of time that the processors of others must be idle, for pinning to be what holds the process up."""
_STALLED = 20.0
"""Percent of time in which all threads of a group waited for memory."""
_LEAST_PERIODS = 2
_WANTED = 0.2
"""Share of the time in which a thread ran, or was ready to, from which on it counts."""
_SUBNORMAL = 0.1
"""Share of subnormal numbers in a tensor from which on they slow its operator down."""
_SHOWN = 3
"""File systems that a sentence names."""
_CONVOY = 4
"""Threads that wait for one lock."""
_RECOMPILED = 8
"""torch._dynamo.config.recompile_limit: a function that was compiled so often is compiled no more."""
_AFFINITY_VARIABLES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_LAUNCHERS = {"TORCHELASTIC_RUN_ID": "torchrun", "SLURM_PROCID": "srun", "OMPI_COMM_WORLD_RANK": "mpirun"}
_COLLECTOR = ("gc_collect", "_PyGC_Collect", "subtract_refs", "deduce_unreachable", "move_unreachable",
              "visit_decref", "visit_reachable", "_Py_RunGC", "PyGC_Collect")  # fmt: skip
"""Functions of CPython's collector (Modules/gcmodule.c; from 3.13 on Python/gc.c and gc_free_threading.c)."""
_INNER = 12
"""Innermost frames in which the collector is looked for."""


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


class Explanation(Record):
    """One reason why the process may be slow. ``text`` is a clause; ``weight`` is from 0 to 1."""

    kind: ExplanationKind
    text: str
    speaks_for: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    weight: float = 0.3
    is_proven: bool = False
    starves: bool = False
    """The process hardly runs because of it, or cannot have what it asks for."""
    cure: str = ""


class Facts(Record):
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
    collection: Callable[[], Collection | None] = lambda: None
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


def explanations(facts: Facts) -> tuple[Explanation, ...]:
    """All that speaks for itself, the proven and weightiest first."""
    found = [each for find in _FINDERS for each in find(facts)]
    return tuple(sorted(found, key=lambda each: (not each.starves, not each.is_proven, -each.weight)))


# --- the machine -------------------------------------------------------------------------------------


def _quota(facts: Facts) -> Iterator[Explanation]:
    quota = facts.around.quota if facts.around is not None else None
    if quota is None or not quota.throttled or quota.share < SLOW_SHARE / 2:
        return
    measured = quota.seconds is not None and quota.periods >= _LEAST_PERIODS
    stood = quota.stood_ms / 1e3 / quota.seconds if quota.seconds else 0.0
    starves = measured and quota.share >= STARVED_SHARE and stood >= _STOOD_STARVED
    when = f"during a look of {quota.seconds:.2f} s" if quota.seconds is not None else "since the group was made"
    text = (
        f"the control group {quota.group} may use {quota.processors:g} "
        f"{of_many(quota.processors, 'processor', 'processors')} "
        f"(quota of each {quota.period_ms:g} ms), and had to stand still in {quota.throttled} of "
        f"{counted(quota.periods, 'period')} {when}"
    )
    online = facts.around.online if facts.around is not None else 0
    more = (
        (f"the machine has {counted(online, 'processor')}, which is what libraries count",)
        if online > quota.processors
        else ()
    )
    against = () if measured else ("measured since the group was made, not now",)
    yield Explanation(
        ExplanationKind.QUOTA, text, (f"it stood still for {quota.stood_ms:g} ms", *more), against,
        round(max(quota.share, 0.2), 2), measured and quota.share >= SLOW_SHARE and stood >= _STOOD_SLOW, starves,
        f"Raise the quota (cpu.max, cpu.cfs_quota_us; docker --cpus, limits.cpu), or let fewer threads run: "
        f"OMP_NUM_THREADS={max(1, round(quota.processors))}, torch.set_num_threads().",
    )  # fmt: skip


def _delays(facts: Facts) -> Iterator[Explanation]:
    """Ready threads that no processor was free for."""
    around = facts.around
    if around is None or not around.seconds:
        return
    if around.quota is not None and around.quota.seconds is not None and around.quota.throttled:
        return  # its own explanation: a group that stands still counts as waiting for a processor
    wanting = [each for each in around.threads if _wanted(each) >= _WANTED * 1e3 * around.seconds]
    delayed, ran = sum(each.delayed_ms or 0 for each in wanting), sum(each.running_ms or 0 for each in wanting)
    share = delayed / (delayed + ran) if delayed + ran else 0.0
    if not wanting or share < SLOW_SHARE:
        return
    told = (f"threads that were ready: {len(wanting)}; {share:.0%} of that time went by before a processor was free",)
    if len(around.allowed) < around.online:
        yield _pinned(facts, around, share, told, crowded=len(wanting) > len(around.allowed))
        return
    team = _team_size(facts, wanting)
    if team > len(around.allowed):
        room = counted(len(around.allowed), "processor")
        text = f"{counted(team, 'thread')} of an OpenMP team run on {room}, and each waits for the last"
        yield Explanation(
            ExplanationKind.OVERSUBSCRIPTION, text, (*told, *facts.variables(_THREAD_VARIABLES)), (), round(share, 2),
            share >= SLOW_SHARE, cure=f"As many threads as processors: torch.set_num_threads({len(around.allowed)}).",
        )  # fmt: skip
    elif len(wanting) <= len(around.allowed):
        yield _crowded_out(around, wanting, share, told)
    else:
        wants = of_many(len(wanting), "wants", "want")
        text = f"{counted(len(wanting), 'thread')} {wants} to run on {counted(len(around.allowed), 'processor')}"
        why = "threads that do not wait for each other lose nothing by that"
        yield Explanation(ExplanationKind.OVERSUBSCRIPTION, text, told, (why,), round(share / 2, 2))


def _wanted(turns: Turns) -> float:
    """Milliseconds in which the thread ran or was ready."""
    return (turns.running_ms or 0) + (turns.delayed_ms or 0)


def _team_size(facts: Facts, wanting: Sequence[Turns]) -> int:
    """Threads of an OpenMP team, where all teams are equally large; 0 without one. Each thread that is no worker may
    have a team of its own, so that many small ones are not taken for a large one."""
    known = [snapshot for each in wanting if (snapshot := facts.process.thread(each.tid)) is not None]
    workers = sum(map(pool_workers.is_worker, known))
    if not workers or not any(pool_workers.is_in_a_team(each) for each in known):
        return 0
    return workers // max(1, len(known) - workers) + 1


def _crowded_out(around: Surroundings, wanting: Sequence[Turns], share: float, told: tuple[str, ...]) -> Explanation:
    low = next((each.priority for each in wanting if each.priority), "")
    fair = around.ordinary_share
    behind = bool(low) and share >= STARVED_SHARE and fair is not None and 1 - share <= _BEHIND * fair
    why = f", and come before it, for it runs with {low}" if low else ""
    text = f"other processes of this machine use its processors{why}: {share:.0%} of the time in which it was ready "
    longest = max((each.delayed_ms or 0) / 1e3 / (around.seconds or 1) for each in wanting)
    starves = behind or min(share, longest) >= _CROWDED_OUT
    weight = round(share if starves else share / 2, 2)
    cure = "Run fewer processes beside it, or put it before them: renice, chrt --other, a larger cpu.weight."
    if low and fair is not None:
        others = f"with an ordinary priority it would be about {1 - fair:.0%}"
        told += (f"{others}: {around.ready:.0f} threads want to run on {counted(around.online, 'processor')}",)
    return Explanation(
        ExplanationKind.OTHER_PROCESSES, f"{text}it waited for one", told, (), weight, starves, starves, cure
    )


def _pinned(facts: Facts, around: Surroundings, share: float, told: tuple[str, ...], crowded: bool) -> Explanation:
    """``crowded``: its own threads are more than these processors."""
    count = len(around.allowed)
    names = ",".join(map(str, around.allowed[:8]))
    variables = facts.variables(_AFFINITY_VARIABLES)
    if variables:
        who = f"by {', '.join(variables)}"
    elif around.cpuset is not None and around.cpuset == count:
        who = "by the cpuset of its control group"
    elif around.pinned_parent:
        who = f"as its parent process {around.pinned_parent} is: taskset, numactl or the launcher"
    else:
        who = "by the program itself, or by taskset"
    is_idle = around.idle is not None and around.idle >= _IDLE
    idle = f"the processors on which it may not run were idle for {around.idle or 0:.0%} of the time"
    text = (
        f"it may run on {'processor' if count == 1 else 'processors'} {names} alone, of {around.online}, pinned {who}"
    )
    matters = is_idle or crowded
    return Explanation(
        ExplanationKind.AFFINITY, text, (*told, idle) if is_idle else told, () if is_idle else (idle,), round(share, 2),
        matters and share >= SLOW_SHARE, matters and share >= STARVED_SHARE,
        "Let it run everywhere: taskset -apc 0-999 PID; then look for what has pinned it.",
    )  # fmt: skip


def _memory(facts: Facts) -> Iterator[Explanation]:
    around = facts.around
    use = around.memory if around is not None else None
    if around is None or use is None or around.seconds is None:
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


def _limits(facts: Facts) -> Iterator[Explanation]:
    around = facts.around
    if around is None:
        return
    tasks, descriptors = around.tasks, around.descriptors
    if tasks is not None and tasks.is_used_up and tasks.refused:
        text = (
            f"its control group may have {tasks.limit:,} processes and threads, and has {tasks.used:,}: no other one "
        )
        text += f"can be started ({tasks.refused} were refused)"
        cure = "Raise pids.max (docker --pids-limit, TasksMax), or start fewer workers and threads."
        yield Explanation(ExplanationKind.TASKS, text, (tasks.source,), (), 0.9, True, True, cure)
    if descriptors is not None and descriptors.is_used_up:
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


def _refused(facts: Facts) -> Iterator[Explanation]:
    """Threads that try again and again to have what they are refused."""
    for thread in facts.threads:
        wait = thread.wait
        what = (wait.refused or wait.once_refused) if wait is not None else None
        if wait is None or what not in _REFUSALS:
            continue
        kind, usual = _REFUSALS[what]
        cause, cure = _cause(facts, what)
        cause, cure = (cause, cure) if cause or wait.refused is None else _other_limit(facts, what)
        if wait.refused is None and not cause:
            continue  # it may have had it by now
        told = wait.handling or wait.caught
        text = f"{thread.label} is refused what it asks for ({told}), and sleeps before it tries again"
        at = (f"at {thread.python_line}",) if thread.python_line else ()
        yield Explanation(kind, f"{text}{cause}", at, (), 0.9, True, True, cure or usual)


def _cause(facts: Facts, what: Refused) -> tuple[str, str]:
    """The limit that is reached now, as a clause, and its own cure; "" where none is known to be."""
    if what is Refused.SPACE:
        full = facts.full_file_systems()
        return (f"; {' and '.join(full[:_SHOWN])} {of_many(len(full), 'is', 'are')} full" if full else ""), ""
    around = facts.around
    if around is None:
        return "", ""
    space, files, users = around.address_space, around.descriptors, around.user_tasks
    if what is Refused.DESCRIPTORS and files is not None and files.is_used_up:
        return f"; it has {files.used:,} of {files.limit:,} descriptors", ""
    if what is Refused.TASKS and around.tasks is not None and around.tasks.is_used_up:
        return f"; its control group has {around.tasks.used:,} of {around.tasks.limit:,} processes and threads", ""
    if what is Refused.TASKS and users is not None:
        return f"; its user may have {users.limit:,} processes and threads in all", (
            "Raise ulimit -u (RLIMIT_NPROC) of that user, or start fewer threads and processes."
        )
    if what in (Refused.TASKS, Refused.MEMORY) and space is not None and space.limit - space.used < _NEAR_LIMIT:
        return f"; it has {byte_size(space.used)} of the {byte_size(space.limit)} of address space that it may have", (
            "Raise ulimit -v (RLIMIT_AS): a thread's stack and a library's block count, used or not."
        )
    return "", ""


def _other_limit(facts: Facts, what: Refused) -> tuple[str, str]:
    """A descriptor was refused to a process that may have more of them: inotify, for one, has limits of its own."""
    files = facts.around.descriptors if facts.around is not None else None
    if what is not Refused.DESCRIPTORS or files is None:
        return "", ""
    return f"; it has {files.used:,} of {files.limit:,} descriptors, so another limit may be reached", (
        "Look at the limits of the user and of the machine: fs.inotify.max_user_instances, fs.file-max; ulimit -n."
    )


# --- the process -------------------------------------------------------------------------------------


def is_collecting(facts: Facts, thread: ThreadReport) -> bool:
    snapshot = facts.process.thread(thread.tid)
    names = [_name(snapshot, level) for level in range(min(_INNER, len(snapshot.frames)))] if snapshot else []
    return any(name.startswith(_COLLECTOR) for name in names)


def _collecting(facts: Facts) -> Iterator[Explanation]:
    for thread in facts.running:
        if is_collecting(facts, thread):
            against = ("one look does not tell how often",)
            found = facts.collection()
            what = "all of Python's objects for garbage" if found is not None and found.is_full else "Python's garbage"
            text = f"{thread.label} collects {what}"
            text += f" (generation {found.generation})" if found is not None else ""
            told: tuple[str, ...] = ()
            if found is not None:
                told = (f"the last full collection left {counted(found.survivors, 'object')}",)
                told += (f"{counted(found.done, 'such collection')} ended before",)
            cure = "gc.freeze() after the start, gc.set_threshold(), or gc.disable() and gc.collect() between steps."
            yield Explanation(ExplanationKind.GARBAGE_COLLECTION, text, told, against, 0.5, cure=cure)


def _name(snapshot: ThreadSnapshot, level: int) -> str:
    function = snapshot.stack.function(level)
    return function.demangled[0] if function is not None and function.demangled else ""


def _compiling(facts: Facts) -> Iterator[Explanation]:
    from gdbext.torch.compile.dynamo_names import COMPILER, PASSES, STAGES

    for thread in facts.threads:
        if not any(f.file.endswith(COMPILER[0]) and f.function == COMPILER[1] for f in thread.python):
            continue
        stage = next((name for f in thread.python for part, name in STAGES if part in f.file), "torch.compile")
        times = facts.recompiled()
        line = thread.user_line
        seconds = facts.compiling_since(thread.tid)
        since = (f"this function has been compiled for {seconds:.0f} s",) if seconds is not None else ()
        doing = next(
            (f"{words} ({f.function})" for f in thread.python for part, words in PASSES if _is_in(f, part)), ""
        )
        size = facts.expression_size(thread.tid)
        terms = (f"SymPy works on an expression of {counted(size, 'part')}",) if size else ()
        told = (f"{stage} is at work{f', for {line}' if line else ''}", f"at {thread.python_line}", *since, *terms)
        told = (told[0], f"it is {doing}", *told[1:]) if doing else told
        if times >= _RECOMPILED:
            text = f"torch.compile compiles again and again ({counted(times, 'recompilation')}), now in {thread.label}"
            cure = "dispatch-compile names what fails the guards; mark shapes as dynamic (torch.compile(dynamic=True))."
            yield Explanation(ExplanationKind.RECOMPILATION, text, told, (), 0.8, True, cure=cure)
        else:
            why = "a program compiles once, at its start"
            yield Explanation(ExplanationKind.COMPILING, f"{thread.label} compiles", told, (why,), 0.5)


def _is_in(frame: Frame, part: str) -> bool:
    return part in frame.file or part in frame.function


def _subnormals(facts: Facts) -> Iterator[Explanation]:
    many = [(name, share) for name, share in facts.subnormals() if share >= _SUBNORMAL]
    if many:
        name, share = max(many, key=lambda each: each[1])
        text = f"{share:.0%} of the numbers in {name} are subnormal: a processor takes many times longer for each"
        told = tuple(f"{each}: {part:.0%} of the elements looked at" for each, part in many)
        cure = "torch.set_flush_denormal(True) in each thread that computes, or keep the numbers away from zero."
        why = "where flush_denormal is on they cost nothing: a register of the thread has that, which was not read"
        yield Explanation(ExplanationKind.SUBNORMALS, text, told, (why,), 0.7, True, cure=cure)


def _contended(facts: Facts) -> Iterator[Explanation]:
    """Many threads that wait for one lock, whose owner runs, or which is on its way from one to another."""
    running = {each.tid: each for each in facts.running}
    waiting: dict[tuple[WaitKind, int], list[ThreadReport]] = {}
    for thread in facts.threads:
        if thread.wait is not None and thread.wait.kind.traits.is_lock:
            waiting.setdefault((thread.wait.kind, thread.wait.address), []).append(thread)
    for (kind, _), threads in waiting.items():
        waits = [each.wait for each in threads if each.wait is not None]
        owner = next((running[tid] for wait in waits for tid in wait.owner_tids if tid in running), None)
        if len(waits) < _CONVOY or (owner is None and not any(wait.being_released for wait in waits)):
            continue
        who = counted(len(threads), "thread")
        goes_on = f"with which {owner.label} runs" if owner is not None else "which is handed on just now"
        text = f"{who} {of_many(len(threads), 'waits', 'wait')} for {waits[0].resource.phrase}, {goes_on}"
        ran = _that_ran(facts, threads)
        against = () if ran else ("one look does not tell whether it goes from hand to hand",)
        is_gil = kind is WaitKind.GIL
        told: tuple[str, ...] = ("Python code runs in one thread at a time",) if is_gil else ()
        told += (f"{ran} of them ran for a moment during the look: it goes from hand to hand",) if ran else ()
        which = ExplanationKind.GIL if is_gil else ExplanationKind.LOCK_CONVOY
        yield Explanation(which, text, told, against, round(min(0.6, len(threads) / 20), 2))


def _that_ran(facts: Facts, threads: Sequence[ThreadReport]) -> int:
    """The number of these threads that ran between two readings."""
    turns = facts.around.threads if facts.around is not None else ()
    tids = {each.tid for each in threads}
    return sum(1 for each in turns if each.tid in tids and (each.running_ms or 0) > 0)


def _one_thread(facts: Facts) -> Iterator[Explanation]:
    """One thread computes where many could."""
    computing = [each for each in facts.running if each.dispatch]
    around = facts.around
    room = min(len(around.allowed), int(around.quota.processors) if around.quota is not None else 1 << 16) if (
        around is not None) else 0  # fmt: skip
    ones = [text for text in facts.variables(_THREAD_VARIABLES) if text.endswith("=1")]
    if len(computing) != 1 or len(facts.running) != 1 or room < 2:
        return
    called = facts.own_threads() if not ones else None
    ones += ["torch.set_num_threads(1)"] if called == 1 else []
    if not ones:
        return
    launcher = next((name for variable, name in _LAUNCHERS.items() if variable in facts.environ), "")
    local = facts.environ.get("LOCAL_WORLD_SIZE", "")
    by = f", which {launcher} sets where nobody else does" if launcher == "torchrun" else ""
    text = (
        f"{computing[0].label} computes alone, with {', '.join(ones)}{by}; it may run on {counted(room, 'processor')}"
    )
    shared = int(local) if local.isdecimal() else 1
    against = (f"{shared} processes of the job share this machine",) if shared > 1 else ()
    most = max(1, room // max(1, shared))
    cure = f"torch.set_num_threads({most})." if called == 1 else f"OMP_NUM_THREADS={most} for each process."
    yield Explanation(ExplanationKind.ONE_THREAD, text, (), against, 0.3 if room // max(1, shared) > 1 else 0.1,
                      cure=cure)  # fmt: skip


_FINDERS: tuple[Callable[[Facts], Iterator[Explanation]], ...] = (
    _quota, _delays, _memory, _limits, _refused, _collecting, _compiling, _subnormals, _contended, _one_thread,
)  # fmt: skip
