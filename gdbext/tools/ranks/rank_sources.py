"""Opens the sources of a job's reports: processes, cores and recordings, which are examined here, or files."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from gdbext.diagnosis.session import Session
from gdbext.engine.formats import parse_json, read_file
from gdbext.engine.glibc.pthread import briefly_stopped
from gdbext.engine.numbers import number
from gdbext.engine.targets.budget import lifted, no_garbage_collection
from gdbext.engine.targets.core_target import CoreTarget
from gdbext.engine.targets.live import supervision
from gdbext.engine.targets.live.proc_checks import thread_state
from gdbext.engine.targets.live.unstopped import UnreadableProcess
from gdbext.engine.targets.recording.replay_target import ReplayTarget
from gdbext.errors import BadData, GdbextError, TargetError, UsageError
from gdbext.tools import running
from gdbext.tools.outcome import failure
from gdbext.tools.ranks import rank_processes, rank_report_reader
from gdbext.tools.ranks.collector import COMMAND, ProgressOfRanks, RankSource, collect, combine_reports, is_settled
from gdbext.tools.ranks.job_report import SCHEMA, RankReport, RankReports, Unreached, merge, read_rows, rows
from gdbext.tools.ranks.report_parser import ReportParser
from gdbext.torch.measure import measure_for_process

if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Target


# --- processes, cores and recordings -------------------------------------------------------------


def local_rows(options: argparse.Namespace) -> RankReports:
    """The rows of what is examined on this machine. Raises UsageError, TargetError."""
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
    """The rows of running processes; a rank that has run since it was seen waiting is examined again."""
    known = rank_processes.local_processes()
    if options.pid is not None:
        pids = rank_processes.job_of_process(options.pid, known)
    else:
        pids = rank_processes.ranks_of_node(options.job, known)
    if not supervision.is_suspect(pids[0]):
        with lifted():
            measure_for_process(pids[0], 2)
    progress = ProgressOfRanks(pids)
    reports, unreached = _partition(_examine(map(_process, pids), options))
    endless = "its environment is longer than any program is started with, so that its job and rank are not known"
    unreached += [Unreached(f"pid {pid}", endless) for pid in rank_processes.endless_environments(known, pids)]
    if not is_settled(reports):
        for _ in range(6):  # 0.05 s is enough for a job that runs to leave a collective, but on a busy machine
            time.sleep(0.05)
            if progress.that_ran(reports):
                break
    again: dict[int, RankReport] = {}  # by pid
    for _ in range(3):
        moved = {report.pid: report for report in progress.that_ran(reports) if report.pid not in again}
        for later in _examine(map(_process, moved), options):
            if isinstance(later, RankReport):
                again[later.pid] = combine_reports(moved[later.pid], later)
    return rows([again.get(report.pid, report) for report in reports], unreached)


def _examine(sources: Iterable[RankSource], options: argparse.Namespace) -> Iterator[RankReport | Unreached]:
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
    """If the process is a task of Slurm's that has not loaded torch, the report with the rank that Slurm gave it."""
    process = rank_processes.read_process(report.pid) if report.rank is None else None
    if not process or not process.rank or not process.tasks or rank_processes.has_torch(report.pid):
        return report
    return report._replace(rank=process.rank[1], size=process.tasks, job=process.jobs[0])


def _has_ended(pid: int | None) -> bool:
    """The process is dead; False if there is none."""
    try:
        return bool(pid) and thread_state(pid or 0, pid or 0) in "ZX"
    except OSError:
        return True


def _process(pid: int) -> RankSource:
    source = _source(f"pid {pid}", partial(briefly_stopped, pid))
    return source._replace(run=partial(_supervised, pid, source.run))


def _supervised(pid: int, run: Callable[[], str]) -> str:
    """The report of an examination; one without the process's memory if the kernel does not let us read that."""
    if not supervision.is_suspect(pid):
        return run()

    def without_memory() -> bytes:
        return running.execute(COMMAND, ["--json"], lambda: Session(UnreadableProcess(pid))).output.encode()

    output = supervision.by_child(lambda: run().encode(), supervision.STUCK_SECONDS)
    output = output or supervision.by_child(without_memory, supervision.SECOND_SECONDS)
    if not output:
        error = TargetError(f"the kernel does not answer ({supervision.sleepers(pid)})")
        return failure(COMMAND, ["--json"], error).output
    return output.decode()


def _source(name: str, open_target: Callable[[], Target]) -> RankSource:
    def run() -> str:
        targets: list[Target] = []

        def open_session() -> Session:
            targets.append(open_target())
            return Session(targets[0])

        try:
            return running.execute(COMMAND, ["--json"], open_session).output
        finally:
            for target in targets:
                target.close()

    return RankSource(name, run)


def _partition(examined: Iterable[RankReport | Unreached]) -> tuple[list[RankReport], list[Unreached]]:
    reports: list[RankReport] = []
    unreached: list[Unreached] = []
    for row in examined:
        if isinstance(row, RankReport):
            reports.append(row)
        else:
            unreached.append(row)
    return reports, unreached


# --- files ---------------------------------------------------------------------------------------


def report_rows(names: Iterable[str]) -> RankReports:
    """The rows of JSON files that were made elsewhere, and of folders of them. Raises UsageError."""
    with no_garbage_collection():  # thousands of documents make millions of values
        single: list[RankReport | Unreached] = []
        merged, parser = rows(), ReportParser()
        for path in _files(names, lambda path: path.suffix == ".json"):
            try:
                value = parser.parse(read_file(str(path)))
                if isinstance(value, dict) and value.get("schema") == SCHEMA:
                    merged = merge(merged, rows(*read_rows(value, path.name)))
                else:
                    single.append(rank_report_reader.read(value, path.name))
            except (OSError, ValueError, GdbextError) as error:
                text = error.what if isinstance(error, GdbextError) else getattr(error, "strerror", None) or str(error)
                text = text.partition("\n")[0]
                single.append(Unreached(path.name, f"its report cannot be read: {text}"))
        return merge(merged, rows(*_partition(single)))


def _files(names: Iterable[str], is_wanted: Callable[[Path], bool]) -> list[Path]:
    """The files, and the wanted ones of folders. Raises UsageError if there is none."""
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
