"""Opens the sources of a job's reports: files, or processes, cores and recordings, which worker processes examine.

Workers are forked after all modules are imported. A target on which the examination hangs costs only its own time
limit: killing a worker releases its target, since the kernel ends ptrace with the tracer.

The processes are examined one after the other, so a job that runs looks like one with a late rank. A rank hangs, as far
as can be seen, if it waited when it was examined and its main thread slept from before the first examination until
after the last one. If it has run, it is examined once more.
"""

from __future__ import annotations

import argparse
import gc
import os
import select
import signal
import struct
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.session import Session
from gdbext.engine.arch import architectures
from gdbext.engine.formats import MAX_BYTES, parse_json, read_file
from gdbext.engine.glibc.pthread import briefly_stopped
from gdbext.engine.numbers import number
from gdbext.engine.targets.budget import MEMORY, MemoryLimit, no_garbage_collection, without_limits
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.targets.live import supervision
from gdbext.engine.targets.live.proc_checks import living_threads, thread_state
from gdbext.engine.targets.live.return_counter import ReturnCounter
from gdbext.engine.targets.live.thread_motion import sleep_place
from gdbext.engine.targets.live.unstopped import UnreadableProcess
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.errors import BadData, ForeignArchitecture, GdbextError, TargetError, UsageError
from gdbext.tools import running
from gdbext.tools.family import prepare
from gdbext.tools.outcome import failure
from gdbext.tools.ranks import mpi_processes, rank_processes, rank_report_reader
from gdbext.tools.ranks.job_report import SCHEMA, RankReport, RankReports, Unreached, read_rows, rows
from gdbext.tools.ranks.rank_report_reader import ReportParser
from gdbext.torch.measure import measure_for_process

if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Target

COMMAND = "dispatch-diagnose"
_THREADS = 256
"""Threads of a rank besides the main one whose progress is recorded, at most."""
_NUMBER = struct.Struct("<Q")
"""What is written to a worker, the index of a source, and what it writes before each answer, the answer's size."""


class ProgressOfRanks:
    """Tells which ranks have run since before the first of them was examined.

    Not since their reports arrived: a thread may move between its examination and the arrival of its report. A thread
    that moved only because it was stopped is examined once more for nothing.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        """Remember where the threads of these processes sleep."""
        self._places = {
            (pid, tid): sleep_place(pid, tid)
            for pid in pids
            for tid in (pid, *sorted(living_threads(pid) - {pid})[:_THREADS])
        }

    def that_ran(self, reports: Iterable[RankReport]) -> list[RankReport]:
        """The reports of ranks that waited for others and have run since, or are about to."""

        def has_moved(pid: int, tid: int) -> bool:
            """True if the thread ran since the beginning, or was created since then."""
            before = self._places.get((pid, tid))
            if not before:  # of another machine, or a thread that was started since
                return (pid, pid) in self._places
            return sleep_place(pid, tid).has_moved(before)

        return [report for report in reports if report.wait and has_moved(report.pid, report.thread or report.pid)]


def is_settled(reports: Sequence[RankReport]) -> bool:
    """True if no rank seems to wait for another one: none waits at all, or all wait in the same operation."""
    return len({report.wait and (report.wait.op, report.wait.seq, report.wait.group) for report in reports}) < 2


def combine_reports(earlier: RankReport, later: RankReport) -> RankReport:
    """Combine two examinations of a rank. If its wait or sequence numbers changed, it runs: nothing is pending."""

    def progress(report: RankReport) -> object:
        return report.wait, [(group.name, group.enqueued, group.completed) for group in report.groups]

    paused = [report.paused_ms for report in (earlier, later) if report.paused_ms is not None]
    together = later._replace(paused_ms=max(paused, default=None))
    if progress(earlier) == progress(later):
        return together
    groups = tuple(
        group._replace(issued=tuple(issued._replace(is_pending=False) for issued in group.issued))
        for group in later.groups
    )
    return together._replace(wait=None, running=True, groups=groups)


class RankSource(NamedTuple):
    """A process, core or recording to examine: ``run``, called in a worker, returns the JSON of its report."""

    name: str
    run: Callable[[], str]


class Result(NamedTuple):
    """The JSON that a worker returned for the source ``name``; if it is "", ``problem`` says why."""

    name: str
    output: str
    problem: str = ""


def collect(sources: Sequence[RankSource], jobs: int, timeout: float, memory: int = MEMORY) -> Iterator[Result]:
    """Examine the sources in worker processes, and yield the results as they arrive. At most ``jobs`` run at once, each
    for at most ``timeout`` seconds and with ``memory`` bytes of its own."""
    prepare("gdbext.live.host", "locale")
    with suppress(ForeignArchitecture):
        architectures.by_name(os.uname().machine)
    waiting = list(range(len(sources)))[::-1]
    workers: dict[int, _Worker] = {}  # by the fd of their answers
    try:
        while waiting or any(worker.source for worker in workers.values()):
            idle = [worker for worker in workers.values() if not worker.source]
            while waiting and (idle or len(workers) < jobs):
                worker = idle.pop() if idle else _Worker(sources, tuple(workers.values()), memory)
                workers[worker.answers] = worker
                worker.start(waiting.pop(), timeout)
            busy = [worker for worker in workers.values() if worker.source]
            limit = max(0.0, min(worker.deadline for worker in busy) - time.monotonic())
            readable, _, _ = select.select([worker.answers for worker in busy], [], [], limit)
            now = time.monotonic()
            for worker in busy:
                result = worker.read() if worker.answers in readable else None
                if not result and worker.deadline <= now:
                    result = worker.give_up(f"no report within {timeout:g} s")
                if result:
                    if worker.has_ended:
                        del workers[worker.answers]
                    yield result
    finally:
        for worker in workers.values():
            worker.kill()


class _Worker:
    """A forked process that examines one source after the other, so that its caches serve all of them."""

    def __init__(self, sources: Sequence[RankSource], others: Sequence[_Worker], memory: int) -> None:
        """``others``: the workers that were forked before. The child closes their pipes, which would keep them alive
        when we are killed. ``memory``: bytes that it may use for one source."""
        self._sources = sources
        self.source: RankSource | None = None
        self.deadline = 0.0
        self.has_ended = False
        self._answer = bytearray()
        questions, self._questions = os.pipe()
        self.answers, answer = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            for worker in (self, *others):
                worker.close()
            _serve(sources, questions, answer, memory)
        os.close(questions)
        os.close(answer)

    def start(self, index: int, timeout: float) -> None:
        """Have it examine a source, for at most ``timeout`` seconds."""
        self.source = self._sources[index]
        self.deadline = time.monotonic() + timeout
        with suppress(BrokenPipeError):  # it was killed: read() says so
            os.write(self._questions, _NUMBER.pack(index))

    def read(self) -> Result | None:
        """Read a piece of the answer. The result if it is complete or the worker has failed, else None."""
        piece = os.read(self.answers, 1 << 20)
        if not piece:
            return self.give_up("its examination ended without a report (status {status})")
        self._answer += piece
        if len(self._answer) < _NUMBER.size:
            return None
        size = _NUMBER.unpack_from(self._answer)[0]
        if size > MAX_BYTES:
            return self.give_up(f"its report has more than {MAX_BYTES} bytes")
        if len(self._answer) < _NUMBER.size + size:
            return None
        output = self._answer[_NUMBER.size :].decode("utf-8", "replace")
        self._answer.clear()
        return self._result(output)

    def give_up(self, problem: str) -> Result:
        """Kill the worker, and return a result without output; ``{status}`` in ``problem`` becomes its status."""
        return self._result("", problem.format(status=self.kill()))

    def _result(self, output: str, problem: str = "") -> Result:
        """The result on the current source; the worker is idle then."""
        assert self.source
        name, self.source = self.source.name, None
        return Result(name, output, problem)

    def close(self) -> None:
        """Close our ends of the worker's pipes."""
        os.close(self._questions)
        os.close(self.answers)

    def kill(self) -> int:
        """Kill the worker; its status as of waitpid(2), 0 if it has not exited within a second."""
        self.has_ended = True
        self.close()
        os.kill(self._pid, signal.SIGKILL)
        deadline = time.monotonic() + 1.0
        while True:  # the kernel may keep one that reads a process for ever
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended or time.monotonic() > deadline:
                return status
            time.sleep(0.002)


def _serve(sources: Sequence[RankSource], questions: int, answer: int, memory: int) -> None:
    """In the child: read indices of sources from ``questions``, write reports to ``answer``. Never returns."""
    status = 1
    try:
        gc.disable()
        gc.freeze()  # a collection would touch, and so copy, every page that the parent shares
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        while request := os.read(questions, _NUMBER.size):
            with MemoryLimit(memory):
                output = sources[_NUMBER.unpack(request)[0]].run().encode("utf-8", "backslashreplace")
            data = _NUMBER.pack(len(output)) + output
            while data:
                data = data[os.write(answer, data) :]
            gc.collect()
        status = 0
    finally:
        os._exit(status)


def local_rows(options: argparse.Namespace) -> RankReports:
    """Examine the cores, recordings or processes that the options name. Raises UsageError, TargetError."""
    if options.cores:
        paths = _files(options.cores, _is_core)
        sources = [_source(str(path), partial(CoreTarget, str(path), options.sysroot)) for path in paths]
    elif options.recordings:
        paths = _files(options.recordings, lambda path: path.suffix == ".rec")
        sources = [_source(str(path), partial(ReplayTarget.load, str(path))) for path in paths]
    else:
        return _live_rows(options)
    return rows(*_partition(_examine(sources, options)))


def _live_rows(options: argparse.Namespace) -> RankReports:
    """The rows of running processes. A rank that ran since it waited is examined again, up to three times."""
    processes = rank_processes.local_processes()
    if options.pid is not None:
        pids = mpi_processes.job_of_process(options.pid, processes)
    else:
        pids = mpi_processes.ranks_of_node(options.job, processes)
    if not supervision.may_block_readers(pids[0]):
        with without_limits():
            measure_for_process(pids[0], 2)
    progress = ProgressOfRanks(pids)
    reports, unreached = _partition(_examine(map(_process_source, pids), options))
    endless = "its environment is longer than execve(2) allows, so its job and rank are unknown"
    unreached += [Unreached(f"pid {pid}", endless) for pid in rank_processes.endless_environments(processes, pids)]
    if not is_settled(reports):
        for _ in range(6):  # 0.05 s is enough for a job that runs to leave a collective, but on a busy machine
            time.sleep(0.05)
            if progress.that_ran(reports):
                break
    again: dict[int, RankReport] = {}  # by pid
    for _ in range(3):
        moved = {report.pid: report for report in progress.that_ran(reports) if report.pid not in again}
        for later in _examine(map(_process_source, moved), options):
            if isinstance(later, RankReport):
                again[later.pid] = combine_reports(moved[later.pid], later)
    return rows(_still_in_mpi([again.get(report.pid, report) for report in reports], options), unreached)


_WATCHED = 0.6
"""Seconds for which calls of MPI are watched."""


def _still_in_mpi(reports: Sequence[RankReport], options: argparse.Namespace) -> list[RankReport]:
    """The reports, with the waits of ranks in a call of MPI proven: such a rank polls and numbers nothing, so the
    kernel counts whether the call returns meanwhile. A rank whose call returned, or that is elsewhere in a second look,
    runs; where nothing can be counted, nobody is known to be waited for."""
    counters: dict[int, ReturnCounter] = {}  # by pid
    waiting = [report for report in reports if report.wait and report.wait.is_mpi]
    with ExitStack() as stack:
        for report in waiting:
            with suppress(OSError):
                if report.wait and report.wait.returns_to:
                    counter = ReturnCounter(report.thread or report.pid, report.wait.returns_to)
                    stack.callback(counter.close)
                    counters[report.pid] = counter
        if waiting:
            time.sleep(_WATCHED)
        second = list(_examine([_process_source(report.pid) for report in waiting], options))
        returned = {pid for pid, counter in counters.items() if counter.count()}
    later = {report.pid: report for report in second if isinstance(report, RankReport)}

    def proven(report: RankReport) -> RankReport:
        look = later.get(report.pid)
        if look and (report.pid in returned or look.wait != report.wait or look.path != report.path):
            return combine_reports(report, look)._replace(wait=None, running=True)
        if report.wait and report.wait.is_mpi and report.pid not in counters:
            unknown = report.wait._replace(peer=None, group_peer=None, owed_by="", root=None, from_any=False)
            return report._replace(wait=unknown)
        return report

    return [proven(report) for report in reports]


def _examine(sources: Iterable[RankSource], options: argparse.Namespace) -> Iterator[RankReport | Unreached]:
    """The row of each source, in the order in which the reports arrive; Unreached if there is no report."""
    for name, output, problem in collect(list(sources), options.jobs, options.timeout, options.memory):
        pid = number(name.rpartition(" ")[2]) if name.startswith("pid ") else None
        if problem:
            yield Unreached(name, problem, ended=_has_ended(pid))
            continue
        try:
            row = rank_report_reader.read(parse_json(output.encode()), name)
        except BadData as error:
            yield Unreached(name, f"its report cannot be read: {error.what}")
            continue
        if isinstance(row, Unreached):
            yield row._replace(ended=_has_ended(pid))
        else:
            yield _with_slurm_rank(row)._replace(user=None if pid is None else rank_processes.user_of(pid))


def _with_slurm_rank(report: RankReport) -> RankReport:
    """The report, with the rank given by Slurm if the process is a Slurm task that has not loaded torch yet."""
    process = rank_processes.read_process(report.pid) if report.rank is None else None
    if not process or not process.rank or not process.tasks or rank_processes.has_torch(report.pid):
        return report
    return report._replace(rank=process.rank.rank, size=process.tasks, job=process.jobs[0])


def _has_ended(pid: int | None) -> bool:
    """True if the process is dead; False for None."""
    try:
        return pid is not None and thread_state(pid, pid) in "ZX"
    except OSError:
        return True


def _process_source(pid: int) -> RankSource:
    """The source of a process's report. If reading its memory would block in the kernel, the report is made without
    it, from /proc alone."""
    source = _source(f"pid {pid}", partial(briefly_stopped, pid))

    def without_memory() -> bytes:
        return running.execute(COMMAND, ["--json"], lambda: Session(UnreadableProcess(pid))).output.encode()

    def run() -> str:
        """Make the report; in a child with a time limit if the process may block its readers."""
        if not supervision.may_block_readers(pid):
            return source.run()
        output = supervision.run_in_child(lambda: source.run().encode(), supervision.STUCK_SECONDS)
        output = output or supervision.run_in_child(without_memory, supervision.SECOND_SECONDS)
        if not output:
            error = TargetError(f"the kernel does not answer ({supervision.thread_states_text(pid)})")
            return failure(COMMAND, ["--json"], error).output
        return output.decode()

    return source._replace(run=run)


def _source(name: str, open_target: Callable[[], Target]) -> RankSource:
    """A source that opens a target, reports on it, and closes it."""

    def run() -> str:
        with ExitStack() as stack:

            def open_session() -> Session:
                target = open_target()
                stack.callback(target.close)
                return Session(target)

            return running.execute(COMMAND, ["--json"], open_session).output

    return RankSource(name, run)


def _partition(examined: Iterable[RankReport | Unreached]) -> tuple[list[RankReport], list[Unreached]]:
    """Split rows into (reports, sources without a report)."""
    rows_of = list(examined)
    reports = [row for row in rows_of if isinstance(row, RankReport)]
    return reports, [row for row in rows_of if isinstance(row, Unreached)]


def report_rows(names: Iterable[str]) -> RankReports:
    """The rows of JSON reports made elsewhere, on one or many processes, or in folders. Raises UsageError."""
    with no_garbage_collection():  # thousands of documents make millions of values
        examined: list[RankReport | Unreached] = []
        parser = ReportParser()
        for path in _files(names, lambda path: path.suffix == ".json"):
            try:
                value = parser.parse(read_file(str(path)))
                if isinstance(value, dict) and value.get("schema") == SCHEMA:
                    examined += chain(*read_rows(value, path.name))
                else:
                    examined.append(rank_report_reader.read(value, path.name))
            except (OSError, ValueError, GdbextError) as error:
                text = error.what if isinstance(error, GdbextError) else getattr(error, "strerror", None) or str(error)
                text = text.partition("\n")[0]
                examined.append(Unreached(path.name, f"its report cannot be read: {text}"))
        return rows(*_partition(examined))


def _files(names: Iterable[str], is_wanted: Callable[[Path], bool]) -> list[Path]:
    """The named files, and the files of named folders that are wanted. Raises UsageError if there is none."""
    paths: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            paths += sorted(member for member in path.iterdir() if member.is_file() and is_wanted(member))
        else:
            paths.append(path)
    if not paths:
        raise UsageError(f"there is nothing to read in {', '.join(names)}", help="name files, or folders of them")
    return paths


def _is_core(path: Path) -> bool:
    """An ELF file of type ET_CORE (elf.h: e_type 4 at byte 16)."""
    try:
        with path.open("rb") as stream:
            head = stream.read(18)
    except OSError:
        return False
    return head[:4] == b"\x7fELF" and int.from_bytes(head[16:18], "little") == 4
