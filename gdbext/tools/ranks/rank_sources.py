"""Opens the sources of a job's reports: processes, cores and recordings that are looked at here, or files."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gdbext.diagnosis.session import Session
from gdbext.engine.formats import parse_json, read_file
from gdbext.engine.glibc.pthread import brief_look
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
from gdbext.tools.ranks import rank_processes, rank_report_reader, ranks_document
from gdbext.tools.ranks.collector import COMMAND, ProgressOfRanks, RankSource, collect, combine_looks, is_settled
from gdbext.tools.ranks.job_report import SCHEMA, RankReport, RankReports, Unreached, merge, rows
from gdbext.tools.ranks.rank_processes import (
    endless_environments,
    has_torch,
    job_of_process,
    ranks_of_node,
    read_process,
    user_of,
)
from gdbext.tools.ranks.report_parser import ReportParser
from gdbext.torch.measure import measure_for_process

if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Target


_MOMENT, _MOMENTS = 0.05, 6
"""Seconds in which a job that runs comes out of the collective that it was seen in; so many times on a busy machine."""
_ENDLESS = "its environment is longer than any program is started with, so that its job and rank are not known"
_ROUNDS = 3
"""So often those that have run meanwhile are looked at again."""


def local_rows(options: argparse.Namespace) -> RankReports:
    """The rows of what is looked at on this machine. Raises UsageError, TargetError."""
    if options.cores:
        looks = [_core(path, options.sysroot) for path in _files(options.cores, _is_core)]
    elif options.recordings:
        looks = [_recording(path) for path in _files(options.recordings, lambda path: path.suffix == ".rec")]
    else:
        return _live_rows(options)
    return rows(*_parted(_found(looks, options)))


def _live_rows(options: argparse.Namespace) -> RankReports:
    """Those of running processes; which of them run on meanwhile is known."""
    known = rank_processes.local_processes()
    pids = job_of_process(options.pid, known) if options.pid is not None else ranks_of_node(options.job, known)
    if not supervision.is_suspect(pids[0]):
        with lifted():
            measure_for_process(pids[0], 2)
    progress = ProgressOfRanks(pids)
    reports, unreached = _parted(_found([_process(pid) for pid in pids], options))
    unreached += [Unreached(f"pid {pid}", _ENDLESS) for pid in endless_environments(known, pids)]
    if not is_settled(reports):
        _let_them_run(progress, reports)
    again: dict[int, RankReport] = {}
    for _ in range(_ROUNDS):
        moved = {report.pid: report for report in progress.that_ran(reports) if report.pid not in again}
        for later in _found([_process(pid) for pid in moved], options):
            if isinstance(later, RankReport):
                again[later.pid] = combine_looks(moved[later.pid], later)
    return rows([again.get(report.pid, report) for report in reports], unreached)


def _let_them_run(progress: ProgressOfRanks, reports: Sequence[RankReport]) -> None:
    """Let the ranks run on: what some wait for may be just about to come."""
    for _ in range(_MOMENTS):
        time.sleep(_MOMENT)
        if progress.that_ran(reports):
            return


def _found(looks: Sequence[RankSource], options: argparse.Namespace) -> Iterator[RankReport | Unreached]:
    for result in collect(looks, options.jobs, options.timeout, options.memory):
        yield _row(result.name, result.output, result.problem)


def _process(pid: int) -> RankSource:
    def open_target() -> Target:
        return brief_look(pid)

    look = _look(f"pid {pid}", open_target)
    return look._replace(run=lambda: _supervised(pid, look.run))


def _supervised(pid: int, run: Callable[[], str]) -> str:
    """The report of a look; where the kernel lets nobody read the memory of the process, one without that."""
    if not supervision.is_suspect(pid):
        return run()

    def without_memory() -> bytes:
        return running.execute(COMMAND, ["--json"], lambda: Session(UnreadableProcess(pid))).output.encode()

    found = supervision.by_child(lambda: run().encode(), supervision.STUCK_SECONDS)
    if not found:
        found = supervision.by_child(without_memory, supervision.SECOND_SECONDS)
    if not found:
        error = TargetError(f"the kernel does not answer ({supervision.sleepers(pid)})")
        return failure(COMMAND, ["--json"], error).output
    return found.decode()


def _core(path: Path, sysroot: str) -> RankSource:
    def open_target() -> Target:
        return CoreTarget(str(path), sysroot)

    return _look(str(path), open_target)


def _recording(path: Path) -> RankSource:
    def open_target() -> Target:
        return ReplayTarget.load(str(path))

    return _look(str(path), open_target)


def _look(name: str, open_target: Callable[[], Target]) -> RankSource:
    def run() -> str:
        opened: list[Target] = []

        def open_session() -> Session:
            opened.append(open_target())
            return Session(opened[0])

        try:
            return running.execute(COMMAND, ["--json"], open_session).output
        finally:
            for target in opened:
                target.close()

    return RankSource(name, run)


def _row(name: str, output: str, problem: str) -> RankReport | Unreached:
    if problem:
        return Unreached(name, problem, ended=_has_ended(name))
    try:
        found = rank_report_reader.read(parse_json(output.encode()), name)
    except BadData as error:
        return Unreached(name, f"its report cannot be read: {error.what}")
    if isinstance(found, Unreached):
        return found._replace(ended=_has_ended(name))
    return _numbered(found)._replace(user=_user(name))


def _numbered(report: RankReport) -> RankReport:
    """The report of a task of Slurm's that has not loaded torch with the number that Slurm gave it."""
    process = read_process(report.pid) if report.rank is None else None
    if not process or not process.rank or not process.tasks or has_torch(report.pid):
        return report
    return report._replace(rank=process.rank[1], size=process.tasks, job=process.jobs[0])


def _user(name: str) -> int | None:
    """The user of the process of that look; None for a file, and for a process that has ended."""
    pid = name.rpartition(" ")[2]
    found = number(pid) if name == f"pid {pid}" else None
    return None if found is None else user_of(found)


def _has_ended(name: str) -> bool:
    """The process of that look is dead."""
    pid = number(name.rpartition(" ")[2])
    if not pid:
        return False
    try:
        return thread_state(pid, pid) in "ZX"
    except OSError:
        return True


def _parted(found: Iterable[RankReport | Unreached]) -> tuple[list[RankReport], list[Unreached]]:
    reports: list[RankReport] = []
    unreached: list[Unreached] = []
    for each in found:
        if isinstance(each, RankReport):
            reports.append(each)
        else:
            unreached.append(each)
    return reports, unreached


def report_rows(names: Iterable[str]) -> RankReports:
    """The rows of JSON files that were made elsewhere, and of folders of them. Raises UsageError."""
    with no_garbage_collection():  # thousands of documents make millions of values
        return _report_rows(_files(names, lambda path: path.suffix == ".json"))


def _report_rows(paths: Iterable[Path]) -> RankReports:
    reports: list[RankReport] = []
    unreached: list[Unreached] = []
    together, parser = rows(), ReportParser()
    for path in paths:
        try:
            value = parser.parse(read_file(str(path)))
            if isinstance(value, dict) and value.get("schema") == SCHEMA:
                together = merge(together, rows(*ranks_document.read_rows(value, path.name)))
                continue
            found = rank_report_reader.read(value, path.name)
        except (OSError, ValueError, GdbextError) as error:
            found = Unreached(path.name, f"its report cannot be read: {_first_line(error)}")
        if isinstance(found, RankReport):
            reports.append(found)
        else:
            unreached.append(found)
    return merge(together, rows(reports, unreached))


def _first_line(error: Exception) -> str:
    text = error.what if isinstance(error, GdbextError) else getattr(error, "strerror", None) or str(error)
    return text.partition("\n")[0]


def _files(names: Iterable[str], wanted: Callable[[Path], bool]) -> list[Path]:
    """The files, and those in the folders that are wanted. Raises UsageError where there is none."""
    found: list[Path] = []
    for name in names:
        path = Path(name)
        if path.is_dir():
            found += sorted(each for each in path.iterdir() if each.is_file() and wanted(each))
        else:
            found.append(path)
    if not found:
        raise UsageError(f"there is nothing to read in {', '.join(names)}", help="name files, or folders of them")
    return found


def _is_core(path: Path) -> bool:
    """An ELF file of type ET_CORE (elf.h: e_type 4 at byte 16)."""
    try:
        with path.open("rb") as stream:
            head = stream.read(18)
    except OSError:
        return False
    return head[:4] == b"\x7fELF" and int.from_bytes(head[16:18], "little") == 4
