"""The look at a process that runs, and is slow or hardly runs: its surroundings, and the facts that slow_reasons.py
explains.
"""

from __future__ import annotations

from time import CLOCK_REALTIME
from typing import TYPE_CHECKING, NamedTuple

from gdbext.cpython.threads.garbage_collector import running_collection
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.threads.thread_reporting import ArgumentReporter
from gdbext.diagnosis.verdict.shortages import Explanation, ExplanationKind, Facts
from gdbext.diagnosis.verdict.slow_reasons import explanations, is_collecting
from gdbext.engine.targets.system.control_groups import descriptor_kinds
from gdbext.engine.targets.system.surroundings import Surroundings, Turns, surroundings
from gdbext.engine.vocabulary import Section, counted
from gdbext.errors import GdbextError
from gdbext.torch.compile.compile_section import recompilations
from gdbext.torch.compile.dynamo_reader import DynamoReader, compilation_began, expression_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import ClassVar

    from gdbext.cpython.threads.garbage_collector import GcRun
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ProcessSnapshot
    from gdbext.engine.targets.system import control_groups as groups


class KernelSleeper(NamedTuple):
    """A thread that sleeps in the kernel as no program can explain (base_target.KernelSide)."""

    tid: int
    state: str
    wchan: str
    kernel_stack: tuple[str, ...]
    page_fault: bool
    asleep_seconds: float | None


class GroupLimits(NamedTuple):
    """The limits of a process's control group; None where it has none."""

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
    """The surroundings of the process, as far as a look needed them."""

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
        """``unread``: what cannot be known where nothing was ``found``."""
        self._surroundings = found
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
        """Everything that was read."""
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
        """The sections of a report."""
        listed = (ExplanationsSection(self.explanations),) if self.explanations else ()
        return (self.machine, *listed)


def slowness(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Slowness | None:
    """Read what surrounds a process that wants to run, or to have something; None where nothing has to be known."""
    sides = tuple(_sleepers(process))
    wants = not session.target.origin.unreadable and (
        wants_something(process, threads) or session.procfs.machine.lacks_descriptors()
    )
    if not (wants or sides):
        return None
    found = None
    if wants:
        # Those that run now have to be known, besides those that ran at the stop.
        tids = sorted(process.tids)
        found = surroundings(session.target, tids, session.procfs.machine)
    if found and found.descriptors and found.descriptors.is_used_up:
        kinds = descriptor_kinds(process.pid, session.target.origin.files)
        found = found._replace(descriptors=found.descriptors._replace(kinds=kinds))
    return _explained(session, process, threads, MachineSection(found, sides))


def slowness_of_core(session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> Slowness:
    """Find the same of a core: what its threads do, and nothing of the machine."""
    return _explained(session, process, threads, MachineSection(None, (), (_NOT_IN_CORES,)))


_NOT_IN_CORES = "a core has no control groups, limits, or times of the scheduler"


def _explained(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport], machine: MachineSection
) -> Slowness:
    facts = Facts(
        process,
        threads,
        machine.found,
        session.target.origin.environ(),
        lambda: _recompilations(session),
        session.procfs.machine.full_file_systems,
        lambda: list(_subnormal_shares(session, process, threads)),
        lambda: _own_threads(session),
        lambda: running_collection(session.python),
        lambda tid: _compiling_since(session, process, tid),
        lambda tid: expression_size(process.python.stack(tid)),
    )
    found = explanations(facts)
    collector = next((each.tid for each in facts.running if is_collecting(facts, each)), None)
    return Slowness(machine, found, facts.collection() if collector is not None else None, collector)


def collects_again(looks: Sequence[Slowness | None]) -> int | None:
    """The thread that collected garbage in the first and in the last look, and began anew in between; None for none."""
    first, last = looks[0], looks[-1]
    if not first or not last or not first.collection or not last.collection:
        return None
    is_another = first.collector == last.collector and not first.collection.is_same(last.collection)
    return last.collector if is_another else None


def over_samples(looks: Sequence[Slowness | None], interval: float) -> Slowness | None:
    """The last of several looks, with what all of them tell of collections of garbage: how many there were, and how
    long the one that is not over yet has taken at the least. ``interval``: seconds that the process ran between two."""
    last, seen = looks[-1], [each for each in looks if each and each.collection]
    if not last or not last.collection:
        return last
    now = last.collection
    ages = [each is not None and each.collection is not None and each.collection.is_same(now) for each in looks]
    same = next((number for number, is_same in enumerate(reversed(ages)) if not is_same), len(ages))
    runs = [each.collection.done for each in seen if each.collection and each.collection.generation == now.generation]
    told = [f"the collector was at work in {len(seen)} of {counted(len(looks), 'sample')}"]
    if same > 1:
        told.append(f"this collection has taken longer than {(same - 1) * interval:.1f} s")
    if runs[-1] > runs[0]:
        told.append(f"{counted(runs[-1] - runs[0], 'collection')} of generation {now.generation} ended between them")
    return last._replace(
        explanations=tuple(
            each._replace(for_=(*each.for_, *told), against=())
            if each.kind is ExplanationKind.GARBAGE_COLLECTION
            else each
            for each in last.explanations
        )
    )


def wants_something(process: ProcessSnapshot, threads: Sequence[ThreadReport]) -> bool:
    """A thread runs, is ready to, or sleeps between two attempts; or a worker is missing."""
    if any(each.state is RunState.RUNNING for each in threads) or any(t.kernel_state == "R" for t in process.threads):
        return True
    if len(process.threads) < len(process.tids):
        return True
    waits = [each.wait for each in threads if each.wait and each.state is RunState.WAITING]
    return any(wait.kind is WaitKind.SLEEP or wait.detail.missing_workers for wait in waits)


def _sleepers(process: ProcessSnapshot) -> Iterator[KernelSleeper]:
    for thread in process.threads:
        side = thread.kernel_side
        if side:
            fault = side.is_page_fault
            yield KernelSleeper(thread.tid, side.state, side.channel, side.stack, fault, side.seconds)


def _subnormal_shares(
    session: Session, process: ProcessSnapshot, threads: Sequence[ThreadReport]
) -> Iterator[tuple[str, float]]:
    """Each tensor of the innermost operator of a thread that runs, with the share of subnormal numbers in it."""
    inside = (process.thread(each.tid) for each in threads if each.state is RunState.RUNNING and each.dispatch)
    thread = next(inside, None)
    if not thread or session.dispatcher_error:
        return
    try:
        found = ArgumentReporter(session).frames(thread.stack, 1)[0]
        for argument in found.arguments:
            for tensor in argument.tensors if argument.confidence.is_proven else ():
                if tensor.address:
                    share = session.tensors.subnormal_share(tensor.address)
                    yield f"{argument.name} of {found.qualified} ({tensor.short})", share
    except GdbextError:
        return  # it runs on: what it had in hand may be gone


def _own_threads(session: Session) -> int | None:
    """The number that torch.set_num_threads() was given; None where nobody has called it, or it cannot be read."""
    number = session.settings.value("num_threads") if session.has_torch else None
    return number if isinstance(number, int) else None


def _compiling_since(session: Session, process: ProcessSnapshot, tid: int) -> float | None:
    """Seconds by the clock of this machine, None for a core; a recording keeps the time at which it was made."""
    began = compilation_began(process.python.stack(tid))
    now = session.target.origin.files.clock(CLOCK_REALTIME) if began is not None else None
    return now - began if now is not None and began is not None and now >= began else None


def _recompilations(session: Session) -> int:
    if not session.python:
        return 0
    return len(recompilations(DynamoReader(session.python).compilations()))
