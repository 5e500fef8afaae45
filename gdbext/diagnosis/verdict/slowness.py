"""The examination of a process that runs, and is slow or hardly runs: its surroundings, and the facts that
slow_reasons.py explains."""

from __future__ import annotations

from contextlib import suppress
from time import CLOCK_REALTIME
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.threads.garbage_collector import running_collection
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.diagnosis.verdict.slow_reasons import (
    Explanation,
    ExplanationKind,
    SlownessInputs,
    explanations,
    is_collecting,
)
from gdbext.engine.targets.system.control_groups import descriptor_kinds
from gdbext.engine.targets.system.surroundings import Surroundings, Turns, surroundings
from gdbext.engine.vocabulary import Section, counted
from gdbext.errors import GdbextError
from gdbext.torch.compile.compile_section import recompilations
from gdbext.torch.compile.dynamo_reader import DynamoReader, compilation_began, expression_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import ClassVar

    from gdbext.cpython.threads.garbage_collector import Collection
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot
    from gdbext.engine.targets.system import control_groups as groups


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

    quota: groups.Quota | None
    memory: groups.MemoryUse | None
    tasks: groups.Allowance | None
    processors: int | None


class ProcessLimits(NamedTuple):
    """The limits of a process and its user (getrlimit)."""

    descriptors: groups.Allowance | None
    processes: groups.Allowance | None
    address_space: groups.Allowance | None


class Pressure(NamedTuple):
    """Pressure stall information of the control group."""

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
        self, found: Surroundings | None, kernel: tuple[KernelSleeper, ...] = (), unread: tuple[str, ...] = ()
    ) -> None:
        """``found``: everything that was read; ``unread``: what cannot be known without it."""
        self._found = found
        if found:
            self.cgroup = GroupLimits(found.quota, found.memory, found.tasks, found.cpuset)
            self.limits = ProcessLimits(found.descriptors, found.user_tasks, found.address_space)
            self.online = found.online
            self.affinity = found.allowed
            self.pressure = Pressure(found.memory.stalled if found.memory else None)
            self.seconds = found.seconds
        self.threads = (*kernel, *(found.threads if found else ()))
        self.files = found.files if found else ()
        self.unread = found.unread if found else unread

    @property
    def found(self) -> Surroundings | None:
        return self._found


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
    collection: Collection | None = None
    """The run of Python's garbage collector that a thread is in."""
    collector: int | None = None
    """The tid of that thread."""

    @property
    def sections(self) -> tuple[Section, ...]:
        """The sections of a report."""
        return (self.machine, *((ExplanationsSection(self.explanations),) if self.explanations else ()))


def slowness(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Slowness | None:
    """Read the surroundings of a process that wants to run, or to have something; None if nothing has to be known."""
    sides = [(thread.tid, thread.kernel_side) for thread in process.threads if thread.kernel_side]
    sleepers = tuple(
        KernelSleeper(tid, side.state, side.channel, side.stack, side.is_page_fault, side.seconds)
        for tid, side in sides
    )
    wants = not session.target.unreadable and (
        _wants_something(process, threads) or session.procfs.machine.lacks_descriptors()
    )
    if not (wants or sleepers):
        return None
    # Those that run now have to be known, besides those that ran at the stop.
    found = surroundings(session.target, sorted(process.tids), session.procfs.machine) if wants else None
    if found and found.descriptors and found.descriptors.is_used_up:
        kinds = descriptor_kinds(process.pid, session.target.files)
        found = found._replace(descriptors=found.descriptors._replace(kinds=kinds))
    return _explained(session, process, threads, MachineSection(found, sleepers))


def slowness_of_core(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Slowness:
    """The same of a core: what its threads do, and nothing of the machine."""
    unread = "a core has no control groups, limits, or times of the scheduler"
    return _explained(session, process, threads, MachineSection(None, (), (unread,)))


def _explained(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport], machine: MachineSection
) -> Slowness:
    def recompiled() -> int:
        return len(recompilations(DynamoReader(session.python).compilations())) if session.python else 0

    def set_num_threads() -> int | None:
        number = session.settings.value("num_threads") if session.has_torch else None
        return number if isinstance(number, int) else None

    def compiling_since(tid: int) -> float | None:
        """Seconds by this machine's clock, None for a core; a recording keeps the time at which it was made."""
        began = compilation_began(process.python.stack(tid))
        now = session.target.files.clock(CLOCK_REALTIME) if began is not None else None
        return now - began if now is not None and began is not None and now >= began else None

    inputs = SlownessInputs(
        process,
        threads,
        machine.found,
        session.target.environ(),
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


def collects_again(looks: Sequence[Slowness | None]) -> int | None:
    """The thread that collected garbage in the first and in the last sample, in different runs; None without one."""
    first, last = looks[0], looks[-1]
    if not first or not last or not first.collection or not last.collection:
        return None
    is_another = first.collector == last.collector and not first.collection.is_same(last.collection)
    return last.collector if is_another else None


def over_samples(looks: Sequence[Slowness | None], interval: float) -> Slowness | None:
    """The last of several samples, with what all of them show of collections of garbage: their number, and the least
    duration of the one that is not over yet. ``interval``: seconds that the process ran between two samples."""
    last = looks[-1]
    if not last or not last.collection:
        return last
    now = last.collection
    runs = [look.collection if look else None for look in looks]
    is_same = [run is not None and run.is_same(now) for run in runs]
    same = is_same[::-1].index(False) if False in is_same else len(looks)
    done = [run.done for run in runs if run and run.generation == now.generation]
    at_work = sum(1 for run in runs if run)
    facts = [f"the collector was at work in {at_work} of {counted(len(looks), 'sample')}"]
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


def _wants_something(process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> bool:
    """A thread runs, is ready to, or sleeps between two attempts; or a worker is missing."""
    if any(thread.state is RunState.RUNNING for thread in threads):
        return True
    if any(thread.kernel_state == "R" for thread in process.threads) or len(process.threads) < len(process.tids):
        return True
    waits = [thread.wait for thread in threads if thread.wait and thread.state is RunState.WAITING]
    return any(wait.kind is WaitKind.SLEEP or wait.detail.missing_workers for wait in waits)


def _subnormal_shares(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]
) -> Iterator[tuple[str, float]]:
    """Each tensor of the innermost operator of a thread that runs, with the share of subnormal numbers in it."""
    inside = (process.thread(each.tid) for each in threads if each.state is RunState.RUNNING and each.dispatch)
    thread = next(inside, None)
    if not thread or session.dispatcher_error:
        return
    with suppress(GdbextError):  # it runs on: what it had in hand may be gone
        step = ArgumentReporter(session).frames(thread.stack, 1)[0]
        for argument in step.arguments:
            for tensor in argument.tensors if argument.confidence.is_proven else ():
                if tensor.address:
                    share = session.tensors.subnormal_share(tensor.address)
                    yield f"{argument.name} of {step.qualified} ({tensor.short})", share
