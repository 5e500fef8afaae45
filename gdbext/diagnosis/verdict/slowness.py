"""Reasons why a process that runs is slow, starved or short of something, with the evidence for and against each."""

from __future__ import annotations

import re
from contextlib import suppress
from enum import Enum
from time import CLOCK_REALTIME
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.threads.garbage_collector import running_collection
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait_detail import NO_ERROR, Refused
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.diagnosis.waits import pool_workers
from gdbext.engine.numbers import number
from gdbext.engine.targets.system.surroundings import Surroundings, Turns, descriptor_kinds, surroundings
from gdbext.engine.vocabulary import Section, byte_size, counted, singular_or_plural
from gdbext.errors import GdbextError
from gdbext.torch.compile.compile_section import recompilations
from gdbext.torch.compile.dynamo_names import COMPILER, PASSES, STAGES
from gdbext.torch.compile.dynamo_reader import DynamoReader, compilation_began, expression_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from typing import ClassVar

    from gdbext.cpython.threads.garbage_collector import GcRun
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot
    from gdbext.engine.targets.system.surroundings import Allowance, MemoryUse, Quota
    from gdbext.engine.vocabulary import Internal


class KernelSleeper(NamedTuple):
    """A thread that sleeps in the kernel for no reason that its program shows (base_target.KernelSide)."""

    tid: int
    state: str
    wchan: str
    kernel_stack: tuple[str, ...]
    page_fault: bool
    asleep_seconds: float | None


class GroupLimits(NamedTuple):
    """The limits of a process's cgroup; None without a limit."""

    quota: Quota | None
    memory: MemoryUse | None
    tasks: Allowance | None
    processors: int | None


class ProcessLimits(NamedTuple):
    """The limits of a process and its user (getrlimit)."""

    descriptors: Allowance | None
    processes: Allowance | None
    address_space: Allowance | None


class Pressure(NamedTuple):
    """Pressure stall information of the cgroup."""

    memory_full: float | None


class MachineSection(Section):
    """The surroundings of the process, as far as they were needed."""

    name: ClassVar[str] = "machine"
    cgroup: GroupLimits
    limits: ProcessLimits
    online: int
    affinity: tuple[int, ...]
    pressure: Pressure
    seconds: float | None
    threads: tuple[KernelSleeper | Turns, ...]
    files: tuple[str, ...]
    unread: tuple[str, ...]

    def __init__(
        self, read: Surroundings | None, kernel: tuple[KernelSleeper, ...] = (), unread: tuple[str, ...] = ()
    ) -> None:
        """``read``: everything that was read; ``unread``: what cannot be known without it."""
        self._surroundings = read
        if read:
            self.cgroup = GroupLimits(read.quota, read.memory, read.tasks, read.cpuset)
            self.limits = ProcessLimits(read.descriptors, read.user_tasks, read.address_space)
            self.online = read.online
            self.affinity = read.allowed
            self.pressure = Pressure(read.memory.stalled if read.memory else None)
            self.seconds = read.seconds
        self.threads = (*kernel, *(read.threads if read else ()))
        self.files = read.files if read else ()
        self.unread = read.unread if read else unread

    @property
    def surroundings(self) -> Surroundings | None:
        return self._surroundings


class ExplanationsSection(Section):
    """The explanations, the likeliest first."""

    name: ClassVar[str] = "explanations"
    only_member: ClassVar[str] = "found"
    found: tuple[Explanation, ...]

    def __init__(self, found: tuple[Explanation, ...]) -> None:
        self.found = found


class Slowness(NamedTuple):
    """The facts that were read of the machine, and what may slow the process down."""

    machine: MachineSection
    explanations: tuple[Explanation, ...]
    collection: GcRun | None = None
    """The run of Python's garbage collector that a thread is in."""
    collector: int | None = None
    """The tid of that thread."""

    @property
    def sections(self) -> tuple[Section, ...]:
        return (self.machine, *((ExplanationsSection(self.explanations),) if self.explanations else ()))


def slowness(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Slowness | None:
    """The reasons for slowness; None, and nothing is read, if no thread runs, is ready or retries."""
    sides = [(thread.tid, thread.kernel_side) for thread in process.threads if thread.kernel_side]
    sleepers = tuple(
        KernelSleeper(tid, side.state, side.channel, side.stack, side.is_page_fault, side.seconds)
        for tid, side in sides
    )
    # A thread runs, is ready to, or sleeps between two attempts; or a worker is missing.
    waits = [thread.wait for thread in threads if thread.wait and thread.state is RunState.WAITING]
    wants = not session.target.origin.unreadable and (
        any(thread.state is RunState.RUNNING for thread in threads)
        or any(thread.kernel_state == "R" for thread in process.threads)
        or len(process.threads) < len(process.tids)
        or any(wait.kind is WaitKind.SLEEP or wait.detail.missing_workers for wait in waits)
        or session.procfs.machine.lacks_descriptors()
    )
    if not (wants or sleepers):
        return None
    read = surroundings(session.target, sorted(process.tids), session.procfs.machine) if wants else None
    if read and read.descriptors and read.descriptors.is_used_up:
        kinds = descriptor_kinds(process.pid, session.target.origin.files)
        read = read._replace(descriptors=read.descriptors._replace(kinds=kinds))
    return _explain(session, process, threads, MachineSection(read, sleepers))


def slowness_of_core(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Slowness:
    """The reasons why the process of a core was slow, by what its threads do: a core has nothing of the machine."""
    unread = "a core has no cgroups, limits or scheduler times"
    return _explain(session, process, threads, MachineSection(None, (), (unread,)))


def _explain(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport], machine: MachineSection
) -> Slowness:
    """Collect the inputs of all explanations, most of which are read only if needed, and explain."""

    def recompiled() -> int:
        return len(recompilations(DynamoReader(session.python).compilations())) if session.python else 0

    def set_num_threads() -> int | None:
        number = session.settings.value("num_threads") if session.has_torch else None
        return number if isinstance(number, int) else None

    def compiling_since(tid: int) -> float | None:
        """Seconds by this machine's clock, None for a core; a recording keeps the time at which it was made."""
        began = compilation_began(process.python.stack(tid))
        now = session.target.origin.files.clock(CLOCK_REALTIME) if began is not None else None
        return now - began if now is not None and began is not None and now >= began else None

    inputs = SlownessInputs(
        process,
        threads,
        machine.surroundings,
        session.target.origin.environ(),
        recompiled,
        session.procfs.machine.full_file_systems,
        lambda: list(_subnormal_shares(session, process, threads)),
        set_num_threads,
        lambda: running_collection(session.python),
        compiling_since,
        lambda tid: expression_size(process.python.stack(tid)),
    )
    reasons = explanations(inputs)
    collector = next((thread.tid for thread in inputs.running if is_collecting(inputs, thread)), None)
    return Slowness(machine, reasons, inputs.collection() if collector is not None else None, collector)


def repeated_collector(samples: Sequence[Slowness | None]) -> int | None:
    """The tid whose thread collects garbage in the first and the last sample, in different runs; None without one."""
    first, last = samples[0], samples[-1]
    if not first or not last or not first.collection or not last.collection:
        return None
    is_another = first.collector == last.collector and not first.collection.is_same(last.collection)
    return last.collector if is_another else None


def _with_share(reason: Explanation, samples: Sequence[Slowness | None]) -> Explanation:
    """The reason, if it is subnormal numbers with the number of samples that have it: it is proven if the thread was in
    such an operator in most of at least three samples."""
    if reason.kind is not ExplanationKind.SUBNORMALS:
        return reason
    having = sum(any(other.kind is reason.kind for other in sample.explanations) for sample in samples if sample)
    fact = f"so it was in {having} of {counted(len(samples), 'sample')}"
    is_proven = len(samples) >= 3 and 2 * having > len(samples)
    against = reason.against[1:] if is_proven else reason.against
    return reason._replace(for_=(*reason.for_, fact), against=against, proven=is_proven)


def with_history(samples: Sequence[Slowness | None], interval: float) -> Slowness | None:
    """The last sample, with what all samples show of subnormal numbers and of garbage collections: their number, and
    the least duration of the current one. ``interval``: seconds that the process ran between two samples."""
    last = samples[-1]
    if last:
        last = last._replace(explanations=tuple(_with_share(reason, samples) for reason in last.explanations))
    if not last or not last.collection:
        return last
    now = last.collection
    runs = [sample.collection if sample else None for sample in samples]
    is_same = [run is not None and run.is_same(now) for run in runs]
    same = is_same[::-1].index(False) if False in is_same else len(samples)
    done = [run.done for run in runs if run and run.generation == now.generation]
    at_work = sum(1 for run in runs if run)
    facts = [f"the collector ran in {at_work} of {counted(len(samples), 'sample')}"]
    if same > 1:
        facts.append(f"this collection has taken longer than {(same - 1) * interval:.1f} s")
    if done[-1] > done[0]:
        facts.append(f"{counted(done[-1] - done[0], 'collection')} of generation {now.generation} ended between them")
    return last._replace(
        explanations=tuple(
            reason._replace(for_=(*reason.for_, *facts), against=())
            if reason.kind is ExplanationKind.GARBAGE_COLLECTION
            else reason
            for reason in last.explanations
        )
    )


_SLOW_ON_SUBNORMALS = re.compile(
    r"::(_?(mul|div|true_divide|floor_divide|addmm|mm|bmm|baddbmm|addmv|mv|matmul|linear|dot|addcmul|addcdiv|lerp|pow|exp"
    r"|exp2|expm1|log|log2|log10|log1p|sqrt|rsqrt|reciprocal|sin|cos|tan|tanh|sigmoid|softmax|log_softmax|gelu|silu|erf"
    r"|norm|var|std|prod|cumprod)|.*(conv|norm|softmax|lstm|gru|attention|pool).*)_?(\.|$)"
)
"""Operators that multiply, divide or compute functions, for which many CPUs need microcode if numbers are subnormal. To
add, compare, select or copy them is not slow (Intel 64 and IA-32 Optimization Reference Manual, "Denormal inputs")."""


def _subnormal_shares(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]
) -> Iterator[tuple[str, float]]:
    """(description, share of subnormal numbers) of each tensor argument of the innermost operator that runs."""
    tids = (report.tid for report in threads if report.state is RunState.RUNNING and report.dispatch)
    thread = process.thread(next(tids, 0))
    if not thread or session.dispatcher_error:
        return
    with suppress(GdbextError):  # the thread runs: its tensors may be freed by now
        step = ArgumentReporter(session).frames(thread.stack, 1)[0]
        if not _SLOW_ON_SUBNORMALS.search(step.qualified):
            return
        for argument in step.arguments:
            for tensor in argument.tensors:
                if tensor.address and argument.confidence.is_proven:
                    share = session.tensors.subnormal_share(tensor.address)
                    yield f"{argument.name} of {step.qualified} ({tensor.short})", share


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
    """A reason for slowness, with the evidence. ``summary``: a clause; ``weight``: 0 to 1, to rank reasons."""

    kind: ExplanationKind
    summary: str
    for_: tuple[str, ...] = ()
    against: tuple[str, ...] = ()
    weight: float = 0.3
    proven: bool = False
    starves: Internal[bool] = False
    """The process hardly runs because of it, or cannot get what it requests."""
    cure: Internal[str] = ""


class SlownessInputs(NamedTuple):
    process: ProcessSnapshot
    threads: Sequence[ThreadReport]
    surroundings: Surroundings | None
    environ: Mapping[str, str]
    recompiled: Callable[[], int]
    full_file_systems: Callable[[], Sequence[str]] = tuple
    """The full file systems, of those on which the process has files open."""
    subnormals: Callable[[], Sequence[tuple[str, float]]] = tuple
    """The tensors of running operators, with the share of subnormal numbers in each."""
    set_num_threads: Callable[[], int | None] = lambda: None
    """The argument of torch.set_num_threads(), if it was called."""
    collection: Callable[[], GcRun | None] = lambda: None
    """The run of Python's garbage collector."""
    compiling_since: Callable[[int], float | None] = lambda _: None
    """Seconds for which the thread with this id has compiled."""
    expression_size: Callable[[int], int | None] = lambda _: None
    """Parts of the expression that the thread with this id simplifies with SymPy."""

    @property
    def running(self) -> list[ThreadReport]:
        return [thread for thread in self.threads if thread.state is RunState.RUNNING]

    def variables(self, names: Sequence[str]) -> list[str]:
        """``OMP_NUM_THREADS=1`` for each of these environment variables that is set."""
        return [f"{name}={self.environ[name]}" for name in names if name in self.environ]


def explanations(inputs: SlownessInputs) -> tuple[Explanation, ...]:
    """All explanations with evidence, the proven and weightiest first."""
    reasons = [reason for explain in _EXPLAINERS for reason in explain(inputs)]
    return tuple(sorted(reasons, key=lambda reason: (not reason.starves, not reason.proven, -reason.weight)))


# --- the machine -------------------------------------------------------------------------------------

_STARVED_SHARE, _SLOW_SHARE = 0.5, 0.25
"""Shares of the periods in which a quota was used up, or of the time in which ready threads waited for a CPU."""
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


def _explain_quota(inputs: SlownessInputs) -> Iterator[Explanation]:
    """The CPU quota of the cgroup throttled the process in at least an eighth of its periods."""
    machine = inputs.surroundings
    quota = machine.quota if machine else None
    if not machine or not quota or not quota.throttled or quota.share < _SLOW_SHARE / 2:
        return
    measured = quota.seconds is not None and quota.periods >= 2
    throttled = quota.stood_ms / 1e3 / quota.seconds if quota.seconds else 0.0  # share of the time
    when = "since the cgroup was created" if quota.seconds is None else f"in an examination of {quota.seconds:.2f} s"
    limit = f"{quota.processors:g} {singular_or_plural(quota.processors, 'CPU', 'CPUs')}"
    limit += f" (quota per {quota.period_ms:g} ms)"
    periods = f"{quota.throttled} of {counted(quota.periods, 'period')}"
    text = f"the cgroup {quota.group} is limited to {limit} and was throttled in {periods} {when}"
    facts = [f"it was throttled for {quota.stood_ms:g} ms"]
    if machine.online > quota.processors:
        facts.append(f"the machine has {counted(machine.online, 'CPU')}, the number that libraries use")
    yield Explanation(
        ExplanationKind.QUOTA,
        text,
        tuple(facts),
        () if measured else ("measured since the cgroup was created, not now",),
        round(max(quota.share, 0.2), 2),
        measured and quota.share >= _SLOW_SHARE and throttled >= 0.1,
        measured and quota.share >= _STARVED_SHARE and throttled >= 0.25,
        f"Raise the quota (cpu.max, cpu.cfs_quota_us; docker --cpus, limits.cpu), or let fewer threads run: "
        f"OMP_NUM_THREADS={max(1, round(quota.processors))}, torch.set_num_threads().",
    )


def _explain_delays(inputs: SlownessInputs) -> Iterator[Explanation]:
    """Threads that are ready wait for a CPU: pinned to few, too many of their own, or beside other processes."""
    machine = inputs.surroundings
    if not machine or not machine.seconds:
        return
    if machine.quota and machine.quota.seconds is not None and machine.quota.throttled:
        return  # its own explanation: a throttled group counts as waiting for a CPU
    # A thread counts if it ran, or was ready to, in a fifth of the time.
    least = 0.2 * 1e3 * machine.seconds
    wanting = [turns for turns in machine.threads if (turns.running_ms or 0) + (turns.delayed_ms or 0) >= least]
    delayed = sum(turns.delayed_ms or 0 for turns in wanting)
    ran = sum(turns.running_ms or 0 for turns in wanting)
    share = delayed / (delayed + ran) if delayed + ran else 0.0
    if not wanting or share < _SLOW_SHARE:
        return
    ready = f"{counted(len(wanting), 'thread')} {singular_or_plural(len(wanting), 'was', 'were')} ready to run"
    facts: tuple[str, ...] = (f"{ready}; {share:.0%} of that time passed before a CPU was free",)
    allowed = len(machine.allowed)
    if allowed < machine.online:
        yield _pinned(inputs, machine, share, facts, crowded=len(wanting) > allowed)
        return
    # An OpenMP team, if all teams are equally large. Each thread that is no worker may have a team of its own, so that
    # many small ones are not taken for a large one.
    snapshots = [snapshot for turns in wanting if (snapshot := inputs.process.thread(turns.tid))]
    workers = sum(map(pool_workers.is_worker, snapshots))
    has_team = workers and any(map(pool_workers.is_in_a_team, snapshots))
    team = workers // max(1, len(snapshots) - workers) + 1 if has_team else 0
    room = counted(allowed, "CPU")
    if team > allowed:
        text = f"{counted(team, 'thread')} of an OpenMP team run on {room}, and each waits for the slowest"
        facts = (*facts, *inputs.variables(_THREAD_VARIABLES))
        cure = f"As many threads as CPUs: torch.set_num_threads({allowed})."
        yield Explanation(ExplanationKind.OVERSUBSCRIPTION, text, facts, (), round(share, 2), proven=True, cure=cure)
    elif len(wanting) <= allowed:
        yield _crowded_out(machine, wanting, share, facts)
    else:
        wants = singular_or_plural(len(wanting), "wants", "want")
        text = f"{counted(len(wanting), 'thread')} {wants} to run on {room}"
        why = "threads that do not wait for each other lose nothing"
        yield Explanation(ExplanationKind.OVERSUBSCRIPTION, text, facts, (why,), round(share / 2, 2))


def _crowded_out(machine: Surroundings, wanting: Sequence[Turns], share: float, facts: tuple[str, ...]) -> Explanation:
    """Other processes use the CPUs. ``share``: part of the time in which ready threads waited for a CPU. On a crowded
    machine all threads wait, and each makes progress: one of ordinary priority starves only if it always waited, one
    of low priority if it gets at most half of what an ordinary one gets."""
    low = next((turns.priority for turns in wanting if turns.priority), "")
    fair = machine.ordinary_share
    behind = bool(low) and share >= _STARVED_SHARE and fair is not None and 1 - share <= fair / 2
    longest = max((turns.delayed_ms or 0) / 1e3 / (machine.seconds or 1) for turns in wanting)
    starves = behind or min(share, longest) >= 0.99
    why = f" and have priority over it (it runs with {low})" if low else ""
    text = f"other processes use the CPUs{why}: when it was ready to run, it waited for a CPU {share:.0%} of the time"
    if low and fair is not None:
        ordinary = f"with an ordinary priority it would be about {1 - fair:.0%}"
        facts += (f"{ordinary}: {machine.ready:.0f} threads want to run on {counted(machine.online, 'CPU')}",)
    weight = round(share if starves else share / 2, 2)
    cure = "Run fewer processes next to it, or raise its priority: renice, chrt --other, a larger cpu.weight."
    return Explanation(ExplanationKind.OTHER_PROCESSES, text, facts, (), weight, starves, starves, cure)


def _pinned(
    inputs: SlownessInputs, machine: Surroundings, share: float, facts: tuple[str, ...], crowded: bool
) -> Explanation:
    """The process may not use all CPUs. ``share``: see _crowded_out; ``crowded``: more threads want to run than may."""
    count = len(machine.allowed)
    names = ",".join(map(str, machine.allowed[:8]))
    variables = inputs.variables(("GOMP_CPU_AFFINITY", "KMP_AFFINITY", "OMP_PROC_BIND", "OMP_PLACES"))
    if variables:
        by = f"by {', '.join(variables)}"
    elif machine.cpuset is not None and machine.cpuset == count:
        by = "by the cpuset of its cgroup"
    elif machine.pinned_parent:
        by = f"like its parent process {machine.pinned_parent} (by taskset, numactl or the launcher)"
    else:
        by = "by the program itself, or by taskset"
    # The other CPUs must be idle for pinning to be what delays the process.
    is_idle = machine.idle is not None and machine.idle >= 0.3
    idle = f"the CPUs on which it may not run were idle for {machine.idle or 0:.0%} of the time"
    matters = is_idle or crowded
    return Explanation(
        ExplanationKind.AFFINITY,
        f"it may run only on {'CPU' if count == 1 else 'CPUs'} {names} (of {machine.online}), pinned {by}",
        (*facts, idle) if is_idle else facts,
        () if is_idle else (idle,),
        round(share, 2),
        matters and share >= _SLOW_SHARE,
        matters and share >= _STARVED_SHARE,
        f"Let it run on all CPUs: taskset -apc 0-999 {inputs.process.pid}; then find what pinned it.",
    )


# --- what the process lacks --------------------------------------------------------------------------

_STALLED = 20.0
"""Percent of time in which all threads of a cgroup waited for memory."""


def _explain_memory_shortage(inputs: SlownessInputs) -> Iterator[Explanation]:
    """The cgroup slows the process down, reclaims its pages, or waits for memory."""
    machine = inputs.surroundings
    use = machine.memory if machine else None
    if not machine or not use or machine.seconds is None:
        return
    faults = sum(turns.major_faults or 0 for turns in machine.threads)
    stalled = use.stalled or 0
    used = byte_size(use.used)
    if use.slowed and use.high is not None:
        text = (
            f"its memory is above memory.high ({used} of {byte_size(use.high)}), so the kernel slows "
            f"it down ({counted(use.slowed, 'time')} during the examination)"
        )
    elif use.full and use.limit is not None and (faults or stalled >= 5):
        text = (
            f"its memory is at its limit ({used} of {byte_size(use.limit)}, reached {counted(use.full, 'time')} during "
            "the examination): the kernel evicts pages that are needed again"
        )
    elif stalled >= _STALLED:
        text = f"its cgroup waits for memory ({used} used)"
    else:
        return
    facts = (
        *((f"all threads waited for memory {use.stalled:g}% of the last 10 s",) if use.stalled else ()),
        *((f"{counted(faults, 'page')} had to be read from a disk again",) if faults else ()),
    )
    starves = bool(use.slowed) or stalled >= 2 * _STALLED
    cure = f"Raise the limit of {use.group}, or use less memory (batch size, workers, page cache)."
    yield Explanation(ExplanationKind.MEMORY, f"{text} ({use.group})", facts, (), 0.8, True, starves, cure)


def _explain_used_up_limits(inputs: SlownessInputs) -> Iterator[Explanation]:
    """Limits of processes, threads and file descriptors that are reached."""
    machine = inputs.surroundings
    if not machine:
        return
    tasks, descriptors = machine.tasks, machine.descriptors
    if tasks and tasks.is_used_up and tasks.refused:
        text = (
            f"its cgroup is limited to {tasks.limit:,} processes and threads and has {tasks.used:,}: no more "
            f"can be started ({tasks.refused} were refused)"
        )
        cure = "Raise pids.max (docker --pids-limit, TasksMax), or start fewer workers and threads."
        yield Explanation(ExplanationKind.TASKS, text, (tasks.source,), (), 0.9, proven=True, starves=True, cure=cure)
    if descriptors and descriptors.is_used_up:
        kinds = ", ".join(f"{count} {kind}" for kind, count in list((descriptors.kinds or {}).items())[:4])
        text = (
            f"it has {descriptors.used:,} fds open and is limited to {descriptors.limit:,}: no file, "
            f"socket or pipe can be opened{f' ({kinds})' if kinds else ''}"
        )
        cure = "Close what is not needed; ulimit -n; torch.multiprocessing.set_sharing_strategy('file_system')."
        yield Explanation(ExplanationKind.DESCRIPTORS, text, (descriptors.source,), (), 0.9, True, True, cure)


_REFUSALS = {
    Refused.SPACE: (ExplanationKind.SPACE, "Free some space there (df, du), or write elsewhere (TMPDIR, --shm-size)."),
    Refused.DESCRIPTORS: (ExplanationKind.DESCRIPTORS, "Close what is not needed; ulimit -n."),
    Refused.TASKS: (ExplanationKind.TASKS, "Raise pids.max, TasksMax or ulimit -u, or start fewer threads."),
    Refused.MEMORY: (ExplanationKind.MEMORY, "Use less memory, or raise its limit (ulimit -v, memory.max)."),
}


def _explain_refusals(inputs: SlownessInputs) -> Iterator[Explanation]:
    """Threads that repeatedly try to get what they are refused."""
    for thread in inputs.threads:
        handling = thread.wait.detail.handling if thread.wait else NO_ERROR
        error = handling or (thread.wait.detail.caught if thread.wait else NO_ERROR)
        if error.refused not in _REFUSALS:
            continue
        kind, usual_cure = _REFUSALS[error.refused]
        cause, cure = _reached_limit(inputs, error.refused)
        files = inputs.surroundings.descriptors if inputs.surroundings else None
        if handling and not cause and error.refused is Refused.DESCRIPTORS and files:
            # inotify, for one, has limits of its own.
            cause = f"; it has {files.used:,} of {files.limit:,} fds, so another limit may be reached"
            limits = "fs.inotify.max_user_instances, fs.file-max; ulimit -n."
            cure = f"Check the limits of the user and of the machine: {limits}"
        if not handling and not cause:
            continue  # it may have got it by now
        text = f"{thread.label} keeps failing with {error.text} and sleeps between retries"
        at = (f"at {thread.python_line}",) if thread.python_line else ()
        yield Explanation(kind, f"{text}{cause}", at, (), 0.9, proven=True, starves=True, cure=cure or usual_cure)


def _reached_limit(inputs: SlownessInputs, resource: Refused) -> tuple[str, str]:
    """(a clause on the limit of ``resource`` that is reached now, its cure or ""); ("", "") if none is known."""
    if resource is Refused.SPACE:
        full = inputs.full_file_systems()
        return (f"; {' and '.join(full[:3])} {singular_or_plural(len(full), 'is', 'are')} full" if full else ""), ""
    machine = inputs.surroundings
    if not machine:
        return "", ""
    space, files, users = machine.address_space, machine.descriptors, machine.user_tasks
    if resource is Refused.DESCRIPTORS and files and files.is_used_up:
        return f"; it has {files.used:,} of {files.limit:,} fds", ""
    if resource is Refused.TASKS and machine.tasks and machine.tasks.is_used_up:
        return f"; its cgroup has {machine.tasks.used:,} of {machine.tasks.limit:,} processes and threads", ""
    if resource is Refused.TASKS and users:
        return f"; its user is limited to {users.limit:,} processes and threads", (
            "Raise ulimit -u (RLIMIT_NPROC) of that user, or start fewer threads and processes."
        )
    # A thread's stack, or a library's block, may need 256 MB at once.
    if resource in (Refused.TASKS, Refused.MEMORY) and space and space.limit - space.used < 256 << 20:
        return f"; it uses {byte_size(space.used)} of its address space limit of {byte_size(space.limit)}", (
            "Raise ulimit -v (RLIMIT_AS): a thread's stack and a library's block count, used or not."
        )
    return "", ""


# --- what the process does ---------------------------------------------------------------------------


def is_collecting(inputs: SlownessInputs, thread: ThreadReport) -> bool:
    """The thread is in CPython's garbage collector (one of its 12 innermost frames)."""
    # Modules/gcmodule.c; from 3.13 on Python/gc.c and gc_free_threading.c.
    collector = (
        *("gc_collect", "_PyGC_Collect", "subtract_refs", "deduce_unreachable", "move_unreachable"),
        *("visit_decref", "visit_reachable", "_Py_RunGC", "PyGC_Collect"),
    )
    snapshot = inputs.process.thread(thread.tid)
    levels = range(min(12, len(snapshot.frames))) if snapshot else ()
    functions = (snapshot.stack.function(level) for level in levels if snapshot)
    return any(
        function and function.demangled and function.demangled[0].startswith(collector) for function in functions
    )


def _explain_garbage_collection(inputs: SlownessInputs) -> Iterator[Explanation]:
    """A thread that runs is in Python's garbage collector."""
    for thread in inputs.running:
        if not is_collecting(inputs, thread):
            continue
        run = inputs.collection()
        what = "runs a full garbage collection" if run and run.is_full else "runs Python's garbage collector"
        text = f"{thread.label} {what}"
        facts: tuple[str, ...] = ()
        if run:
            text += f" (generation {run.generation})"
            facts = (
                f"the last full collection left {counted(run.survivors, 'object')}",
                f"{counted(run.done, 'such collection')} ended before",
            )
        against = ("one sample does not show how often",)
        cure = "gc.freeze() after the start, gc.set_threshold(), or gc.disable() and gc.collect() between steps."
        yield Explanation(ExplanationKind.GARBAGE_COLLECTION, text, facts, against, 0.5, cure=cure)


def _explain_compilation(inputs: SlownessInputs) -> Iterator[Explanation]:
    """A thread is in torch.compile: proven as the reason only after many recompilations."""
    for thread in inputs.threads:
        frames = thread.python_frames
        if not any(frame.file.endswith(COMPILER[0]) and frame.function == COMPILER[1] for frame in frames):
            continue
        stage = next((name for frame in frames for part, name in STAGES if part in frame.file), "torch.compile")
        facts = [f"{stage} is at work{f', for {thread.user_line}' if thread.user_line else ''}"]
        passes = (
            f"it is {words} ({frame.function})"
            for frame in frames
            for part, words in PASSES
            if part in frame.file or part in frame.function
        )
        facts += [*list(passes)[:1], f"at {thread.python_line}"]
        times = inputs.recompiled()
        seconds, size = inputs.compiling_since(thread.tid), inputs.expression_size(thread.tid)
        if seconds is not None:
            facts.append(f"this compilation has taken {seconds:.0f} s so far")
        if size:
            facts.append(f"SymPy works on an expression of {counted(size, 'part')}")
        if times >= 8:  # torch._dynamo.config.recompile_limit: from then on a function is not compiled any more
            text = f"torch.compile compiles again and again ({counted(times, 'recompilation')}), now in {thread.label}"
            cure = "dispatch-compile names what fails the guards; mark shapes as dynamic (torch.compile(dynamic=True))."
            yield Explanation(ExplanationKind.RECOMPILATION, text, tuple(facts), (), 0.8, proven=True, cure=cure)
        else:
            against = ("a program compiles once, at its start",)
            yield Explanation(ExplanationKind.COMPILING, f"{thread.label} compiles", tuple(facts), against, 0.5)


def _explain_subnormals(inputs: SlownessInputs) -> Iterator[Explanation]:
    """An argument of a running operator has many subnormal numbers, with which a CPU is slow."""
    # A tenth of subnormal numbers in a tensor slows its operator down.
    many = [(name, share) for name, share in inputs.subnormals() if share >= 0.1]
    if many:
        name, share = max(many, key=lambda row: row[1])
        text = f"{share:.0%} of the numbers in {name} are subnormal, which this operator may take much longer for"
        facts = tuple(f"{tensor}: {part:.0%} of the sampled elements" for tensor, part in many)
        cure = "torch.set_flush_denormal(True) in each thread that computes, or keep the numbers away from zero."
        against = (
            "one sample does not show whether the thread spends its time there",
            "they cost nothing if flush_denormal is on, which is set in a register that was not read",
        )
        yield Explanation(ExplanationKind.SUBNORMALS, text, facts, against, 0.5, cure=cure)


def _explain_lock_contention(inputs: SlownessInputs) -> Iterator[Explanation]:
    """Four or more threads that wait for one lock, whose owner runs, or which is being handed over."""
    running = {thread.tid: thread for thread in inputs.running}
    waiting: dict[tuple[WaitKind, int], list[ThreadReport]] = {}
    for thread in inputs.threads:
        if thread.wait and thread.wait.kind.traits.is_lock:
            waiting.setdefault((thread.wait.kind, thread.wait.address), []).append(thread)
    for (kind, _), threads in waiting.items():
        waits = [thread.wait for thread in threads if thread.wait]
        owner = next((running[tid] for wait in waits for tid in wait.owner_tids if tid in running), None)
        if len(waits) < 4 or (not owner and not any(wait.being_released for wait in waits)):
            continue
        owned = f"which {owner.label} holds while it runs" if owner else "which is being handed over"
        waits_for = f"{singular_or_plural(len(threads), 'waits', 'wait')} for {waits[0].resource.phrase}"
        text = f"{counted(len(threads), 'thread')} {waits_for}, {owned}"
        tids = {thread.tid for thread in threads}
        turns = inputs.surroundings.threads if inputs.surroundings else ()
        ran = sum(turn.tid in tids and (turn.running_ms or 0) > 0 for turn in turns)
        is_gil = kind is WaitKind.GIL
        facts: tuple[str, ...] = ("Python code runs in one thread at a time",) if is_gil else ()
        facts += (f"{ran} of them ran for a moment during the examination: it changes hands",) if ran else ()
        against = () if ran else ("one sample does not show whether it changes hands",)
        explained = ExplanationKind.GIL if is_gil else ExplanationKind.LOCK_CONVOY
        yield Explanation(explained, text, facts, against, round(min(0.6, len(threads) / 20), 2))


def _explain_single_thread(inputs: SlownessInputs) -> Iterator[Explanation]:
    """The only thread that runs computes without an OpenMP team, because a setting allows one thread."""
    computing = [thread for thread in inputs.running if thread.dispatch]
    machine, environ = inputs.surroundings, inputs.environ
    room = min(len(machine.allowed), int(machine.quota.processors) if machine.quota else 1 << 16) if machine else 0
    if len(computing) != 1 or len(inputs.running) != 1 or room < 2:
        return
    ones = [text for text in inputs.variables(_THREAD_VARIABLES) if text.endswith("=1")]
    called = not ones and inputs.set_num_threads() == 1
    if not ones and not called:
        return
    setting = "torch.set_num_threads(1)" if called else ", ".join(ones)
    launchers = {"TORCHELASTIC_RUN_ID": "torchrun", "SLURM_PROCID": "srun", "OMPI_COMM_WORLD_RANK": "mpirun"}
    launcher = next((name for variable, name in launchers.items() if variable in environ), "")
    by = f", which {launcher} sets unless it is set already" if launcher == "torchrun" else ""
    can = f"it may use {counted(room, 'CPU')}"
    text = f"{computing[0].label} computes on one thread, because of {setting}{by}; {can}"
    sharing = number(environ.get("LOCAL_WORLD_SIZE", "")) or 1
    against = (f"{sharing} processes of the job share this machine",) if sharing > 1 else ()
    most = max(1, room // max(1, sharing))
    cure = f"torch.set_num_threads({most})." if called else f"OMP_NUM_THREADS={most} for each process."
    yield Explanation(ExplanationKind.ONE_THREAD, text, (), against, 0.3 if most > 1 else 0.1, cure=cure)


_EXPLAINERS: tuple[Callable[[SlownessInputs], Iterator[Explanation]], ...] = (
    _explain_quota,
    _explain_delays,
    _explain_memory_shortage,
    _explain_used_up_limits,
    _explain_refusals,
    _explain_garbage_collection,
    _explain_compilation,
    _explain_subnormals,
    _explain_lock_contention,
    _explain_single_thread,
)
