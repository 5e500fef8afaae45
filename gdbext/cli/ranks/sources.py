"""Where the reports of a job come from: processes, cores and recordings that are looked at here, or files."""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gdbext.cli.ranks.collector import COMMAND, Look, collect
from gdbext.cli.ranks.job_processes import job_of_process, ranks_of_node
from gdbext.commands import registry
from gdbext.errors import BadData, GdbextError, UsageError
from gdbext.jobs.merge import Rows, merge, rows
from gdbext.model.job.job_report import SCHEMA
from gdbext.model.job.rank_report import RankReport, Unreached
from gdbext.render.json import rank_report_reader
from gdbext.render.json.documents import ranks_document
from gdbext.render.json.report_parser import ReportParser
from gdbext.targets.live.proc_checks import thread_state

if TYPE_CHECKING:
    from gdbext.cli.ranks.motion import Motion
    from gdbext.targets.base import Target

_LARGEST_REPORT = 64 << 20
"""Bytes: the report on a job of 10,000 ranks has 30 MB."""
_A_MOMENT = 0.05
"""Seconds in which a job that runs comes out of the collective that it was seen in."""


def local_rows(options: argparse.Namespace) -> Rows:
    """The rows of what is looked at on this machine. Raises UsageError, TargetError."""
    if options.cores:
        looks = [_core(path, options.sysroot) for path in _files(options.cores, _is_core)]
    elif options.recordings:
        looks = [_recording(path) for path in _files(options.recordings, lambda path: path.suffix == ".rec")]
    else:
        return _live_rows(options)
    return rows(*_parted(_found(looks, options)))


def _live_rows(options: argparse.Namespace) -> Rows:
    """Those of running processes; which of them run on meanwhile is known."""
    from gdbext.cli.ranks.motion import Motion, settled
    from gdbext.layouts.measure.ahead import measure_for_process

    pids = job_of_process(options.pid) if options.pid is not None else ranks_of_node(options.job)
    measure_for_process(pids[0], 2)
    motion = Motion()
    reports, unreached = _parted(_found([_process(pid) for pid in pids], options, motion))
    if len({report.wait is None for report in reports}) > 1:
        time.sleep(_A_MOMENT)  # for what the others wait may be just about to come
    moved = {report.pid: report for report in motion.moved(reports)}
    for later in _found([_process(pid) for pid in moved], options):
        if isinstance(later, RankReport):
            moved[later.pid] = settled(moved[later.pid], later)
    return rows([moved.get(report.pid, report) for report in reports], unreached)


def _found(
    looks: Sequence[Look], options: argparse.Namespace, motion: Motion | None = None
) -> Iterator[RankReport | Unreached]:
    for result in collect(looks, options.jobs, options.timeout):
        found = _row(result.name, result.output, result.problem)
        if motion is not None and isinstance(found, RankReport):
            motion.note(found)
        yield found


def _process(pid: int) -> Look:
    def open_target() -> Target:
        from gdbext.targets.live.brief_stop import brief_stop

        return brief_stop(pid)

    return _look(f"pid {pid}", open_target)


def _core(path: Path, sysroot: str) -> Look:
    def open_target() -> Target:
        from gdbext.targets.core_target import CoreTarget

        return CoreTarget(str(path), sysroot)

    return _look(str(path), open_target)


def _recording(path: Path) -> Look:
    def open_target() -> Target:
        from gdbext.targets.recording.replay_target import ReplayTarget

        return ReplayTarget.load(str(path))

    return _look(str(path), open_target)


def _look(name: str, open_target: Callable[[], Target]) -> Look:
    def run() -> str:
        from gdbext.inspection.session import Session

        opened: list[Target] = []

        def open_session() -> Session:
            opened.append(open_target())
            return Session(opened[0])

        try:
            return registry.execute(COMMAND, ["--json"], open_session).output
        finally:
            for target in opened:
                target.close()

    return Look(name, run)


def _row(name: str, output: str, problem: str) -> RankReport | Unreached:
    if problem:
        return Unreached(name, problem, ended=_has_ended(name))
    try:
        found = rank_report_reader.read(json.loads(output), name)
    except (ValueError, BadData) as error:
        return Unreached(name, f"its report cannot be read: {error}")
    return found._replace(ended=_has_ended(name)) if isinstance(found, Unreached) else found


def _has_ended(name: str) -> bool:
    """The process of that look is dead."""
    pid = name.rpartition(" ")[2]
    if not pid.isdecimal():
        return False
    try:
        return thread_state(int(pid), pid) in "ZX"
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


def report_rows(names: Iterable[str]) -> Rows:
    """The rows of JSON files that were made elsewhere, and of folders of them. Raises UsageError."""
    gc.disable()  # thousands of documents make millions of values, none of them in a circle
    reports: list[RankReport] = []
    unreached: list[Unreached] = []
    together, parser = rows(), ReportParser()
    for path in _files(names, lambda path: path.suffix == ".json"):
        try:
            if path.stat().st_size > _LARGEST_REPORT:
                raise BadData(f"it has {path.stat().st_size} bytes")
            value = parser.parse(path.read_bytes())
            if isinstance(value, dict) and value.get("schema") == SCHEMA:
                together = merge(together, rows(*ranks_document.read_rows(value, path.name)))
                continue
            found = rank_report_reader.read(value, path.name)
        except (OSError, ValueError, RecursionError, GdbextError) as error:
            found = Unreached(path.name, f"its report cannot be read: {_first_line(error)}")
        if isinstance(found, RankReport):
            reports.append(found)
        else:
            unreached.append(found)
    return merge(together, rows(reports, unreached))


def _first_line(error: Exception) -> str:
    text = error.what if isinstance(error, GdbextError) else str(error)
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
