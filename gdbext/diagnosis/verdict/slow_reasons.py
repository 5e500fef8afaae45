"""Reasons why a process that runs is slow, or hardly runs, with what speaks for and against each, ranked.

From the surroundings of the process (engine/targets/system/surroundings.py) and from what its threads do; nothing is
read here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.diagnosis.report.thread_report import Frame, ThreadReport
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.shortages import (
    Explanation,
    ExplanationKind,
    Facts,
    refused_again,
    short_of_memory,
    used_up,
)
from gdbext.diagnosis.waits import pool_workers
from gdbext.engine.numbers import number
from gdbext.engine.vocabulary import counted, of_many
from gdbext.torch.compile.dynamo_names import COMPILER, PASSES, STAGES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
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
_LEAST_PERIODS = 2
_WANTED = 0.2
"""Share of the time in which a thread ran, or was ready to, from which on it counts."""
_SUBNORMAL = 0.1
"""Share of subnormal numbers in a tensor from which on they slow its operator down."""
_CONVOY = 4
"""Threads that wait for one lock."""
_RECOMPILED = 8
"""torch._dynamo.config.recompile_limit: a function that was compiled so often is compiled no more."""
_AFFINITY_VARIABLES = ("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
_LAUNCHERS = {"TORCHELASTIC_RUN_ID": "torchrun", "SLURM_PROCID": "srun", "OMPI_COMM_WORLD_RANK": "mpirun"}
_COLLECTOR = (
    "gc_collect",
    "_PyGC_Collect",
    "subtract_refs",
    "deduce_unreachable",
    "move_unreachable",
    "visit_decref",
    "visit_reachable",
    "_Py_RunGC",
    "PyGC_Collect",
)
"""Functions of CPython's collector (Modules/gcmodule.c; from 3.13 on Python/gc.c and gc_free_threading.c)."""
_INNER = 12
"""Innermost frames in which the collector is looked for."""


def explanations(facts: Facts) -> tuple[Explanation, ...]:
    """All that speaks for itself, the proven and weightiest first."""
    found = [each for find in _FINDERS for each in find(facts)]
    return tuple(sorted(found, key=lambda each: (not each.starves, not each.proven, -each.weight)))


# --- the machine -------------------------------------------------------------------------------------


def _quota(facts: Facts) -> Iterator[Explanation]:
    quota = facts.around.quota if facts.around else None
    if not quota or not quota.throttled or quota.share < SLOW_SHARE / 2:
        return
    measured = quota.seconds is not None and quota.periods >= _LEAST_PERIODS
    stood = quota.stood_ms / 1e3 / quota.seconds if quota.seconds else 0.0
    starves = measured and quota.share >= STARVED_SHARE and stood >= _STOOD_STARVED
    when = f"during a look of {quota.seconds:.2f} s" if quota.seconds is not None else "since the group was made"
    text = (
        f"the control group {quota.group} may use {quota.processors:g} "
        f"{of_many(quota.processors, 'processor', 'processors')} "
        f"(quota of each {quota.period_ms:g} ms), and was throttled in {quota.throttled} of "
        f"{counted(quota.periods, 'period')} {when}"
    )
    online = facts.around.online if facts.around else 0
    more = (
        (f"the machine has {counted(online, 'processor')}, which is what libraries count",)
        if online > quota.processors
        else ()
    )
    against = () if measured else ("measured since the group was made, not now",)
    yield Explanation(
        ExplanationKind.QUOTA,
        text,
        (f"it stood still for {quota.stood_ms:g} ms", *more),
        against,
        round(max(quota.share, 0.2), 2),
        measured and quota.share >= SLOW_SHARE and stood >= _STOOD_SLOW,
        starves,
        f"Raise the quota (cpu.max, cpu.cfs_quota_us; docker --cpus, limits.cpu), or let fewer threads run: "
        f"OMP_NUM_THREADS={max(1, round(quota.processors))}, torch.set_num_threads().",
    )


def _delays(facts: Facts) -> Iterator[Explanation]:
    """Ready threads that no processor was free for."""
    around = facts.around
    if not around or not around.seconds:
        return
    if around.quota and around.quota.seconds is not None and around.quota.throttled:
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
            ExplanationKind.OVERSUBSCRIPTION,
            text,
            (*told, *facts.variables(_THREAD_VARIABLES)),
            (),
            round(share, 2),
            share >= SLOW_SHARE,
            cure=f"As many threads as processors: torch.set_num_threads({len(around.allowed)}).",
        )
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
    known = [snapshot for each in wanting if (snapshot := facts.process.thread(each.tid))]
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
        ExplanationKind.AFFINITY,
        text,
        (*told, idle) if is_idle else told,
        () if is_idle else (idle,),
        round(share, 2),
        matters and share >= SLOW_SHARE,
        matters and share >= STARVED_SHARE,
        f"Let it run everywhere: taskset -apc 0-999 {facts.process.pid}; then look for what has pinned it.",
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
            what = "all of Python's objects for garbage" if found and found.is_full else "Python's garbage"
            text = f"{thread.label} collects {what}"
            text += f" (generation {found.generation})" if found else ""
            told: tuple[str, ...] = ()
            if found:
                told = (f"the last full collection left {counted(found.survivors, 'object')}",)
                told += (f"{counted(found.done, 'such collection')} ended before",)
            cure = "gc.freeze() after the start, gc.set_threshold(), or gc.disable() and gc.collect() between steps."
            yield Explanation(ExplanationKind.GARBAGE_COLLECTION, text, told, against, 0.5, cure=cure)


def _name(snapshot: ThreadSnapshot, level: int) -> str:
    function = snapshot.stack.function(level)
    return function.demangled[0] if function and function.demangled else ""


def _compiling(facts: Facts) -> Iterator[Explanation]:
    for thread in facts.threads:
        if not any(f.file.endswith(COMPILER[0]) and f.function == COMPILER[1] for f in thread.python_frames):
            continue
        stage = next((name for f in thread.python_frames for part, name in STAGES if part in f.file), "torch.compile")
        times = facts.recompiled()
        line = thread.user_line
        seconds = facts.compiling_since(thread.tid)
        since = (f"this function has been compiled for {seconds:.0f} s",) if seconds is not None else ()
        doing = next(
            (f"{words} ({f.function})" for f in thread.python_frames for part, words in PASSES if _is_in(f, part)), ""
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
        if thread.wait and thread.wait.kind.traits.is_lock:
            waiting.setdefault((thread.wait.kind, thread.wait.address), []).append(thread)
    for (kind, _), threads in waiting.items():
        waits = [each.wait for each in threads if each.wait]
        owner = next((running[tid] for wait in waits for tid in wait.owner_tids if tid in running), None)
        if len(waits) < _CONVOY or (not owner and not any(wait.being_released for wait in waits)):
            continue
        who = counted(len(threads), "thread")
        goes_on = f"with which {owner.label} runs" if owner else "which is handed on just now"
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
    turns = facts.around.threads if facts.around else ()
    tids = {each.tid for each in threads}
    return sum(1 for each in turns if each.tid in tids and (each.running_ms or 0) > 0)


def _one_thread(facts: Facts) -> Iterator[Explanation]:
    """One thread computes where many could."""
    computing = [each for each in facts.running if each.dispatch]
    around = facts.around
    room = min(len(around.allowed), int(around.quota.processors) if around.quota else 1 << 16) if (around) else 0
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
    shared = number(local) or 1
    against = (f"{shared} processes of the job share this machine",) if shared > 1 else ()
    most = max(1, room // max(1, shared))
    cure = f"torch.set_num_threads({most})." if called == 1 else f"OMP_NUM_THREADS={most} for each process."
    yield Explanation(
        ExplanationKind.ONE_THREAD, text, (), against, 0.3 if room // max(1, shared) > 1 else 0.1, cure=cure
    )


_FINDERS: tuple[Callable[[Facts], Iterator[Explanation]], ...] = (
    _quota,
    _delays,
    short_of_memory,
    used_up,
    refused_again,
    _collecting,
    _compiling,
    _subnormals,
    _contended,
    _one_thread,
)
