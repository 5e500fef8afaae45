"""Opens the sources of a job's reports: processes, cores and recordings that are looked at here, or files.

Finds the processes of this machine that belong to a job: by their initial environment, else by the tree of
processes.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gdbext.diagnosis.job.job_rank import job_names, rank_of
from gdbext.engine.formats.bounded_input import parse_json, read_file
from gdbext.engine.record import Record
from gdbext.engine.targets.budget import lifted, no_garbage_collection
from gdbext.engine.targets.live import supervision
from gdbext.engine.targets.live.proc_checks import check_exists, thread_state
from gdbext.engine.targets.system.linux import number, parse_environ
from gdbext.errors import BadData, GdbextError, TargetError, UsageError, or_root
from gdbext.tools import table
from gdbext.tools.ranks import rank_report_reader, ranks_document
from gdbext.tools.ranks.collector import COMMAND, RankSource, collect
from gdbext.tools.ranks.job_report import SCHEMA, RankReport, RankReports, Unreached, merge, rows
from gdbext.tools.ranks.report_shapes import ReportParser

if TYPE_CHECKING:
    from gdbext.engine.targets.base_target import Target
    from gdbext.tools.ranks.collector import ProgressOfRanks

_TORCH = "libtorch_cpu.so"
_RANK = "RANK"
"""The variable that torchrun sets (torch/distributed/elastic/agent/server/local_elastic_agent.py)."""
LOOKS = "GDBEXT_LOOKS"
"""The variable of our own processes beside the ranks of a job (other_machines.py): they are none of them."""
_PYTHONS = (b"python", b"pt_main_thread")
"""Beginnings of the kernel's name of a Python process; some releases of torch set the second one."""


class RankProcess(Record):
    """The facts of /proc on a process: its parent, the job and rank of its initial environment, whether it is dead."""

    pid: int
    parent: int
    is_zombie: bool
    jobs: tuple[str, ...]
    """All names of its job."""
    rank: tuple[str, int] | None
    """The variable that gives it, and the rank."""
    is_closed: bool = False
    """A Python whose environment may not be read."""
    local_rank: str = ""
    """LOCAL_RANK of its initial environment: its number on this machine."""
    tasks: int = 0
    """The number of tasks of its step of Slurm's; 0 for a process of none, and for one that looks at the others."""


def local_processes() -> dict[int, RankProcess]:
    """All processes that can be seen; what may not be read of one is None."""
    found = {}
    for name in os.listdir("/proc"):  # noqa: PTH208 - strings are all that is needed
        if name.isdecimal():
            process = _read(int(name))
            if process is not None:
                found[process.pid] = process
    return found


def _read(pid: int) -> RankProcess | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            begin, _, end = stream.read().rpartition(b") ")
    except OSError:
        return None
    fields = end.split()
    environ: Mapping[str, str] = {}
    is_closed = False
    try:
        environ = parse_environ(supervision.read_file_of(pid, "environ"))
    except PermissionError:
        is_closed = begin.partition(b"(")[2].startswith(_PYTHONS)
    except OSError:
        pass
    is_zombie = fields[0] in (b"Z", b"X")
    return RankProcess(pid, int(fields[1]), is_zombie, tuple(job_names(environ)), rank_of(environ), is_closed,
                       environ.get("LOCAL_RANK", ""), _tasks(environ))  # fmt: skip


def _tasks(environ: Mapping[str, str]) -> int:
    if "SLURM_STEP_ID" not in environ or LOOKS in environ:
        return 0
    return number(environ.get("SLURM_NTASKS", "")) or 1


def job_of_process(pid: int) -> list[int]:
    """The ranks of the job that process ``pid`` is of, or launched, dead ones included. Raises TargetError."""
    check_exists(pid)
    known = local_processes()
    own = known.get(pid)
    if own is None:
        raise TargetError(f"process {pid} ended while its job was looked for")
    if own.rank is not None and own.jobs and pid not in _launchers(known):
        return _ranks(known, own.jobs[0])
    children = _below(known, pid)
    if children:
        return children
    siblings = _below(known, own.parent)
    return siblings if pid in siblings else [pid]


def ranks_of_node(job: str | None) -> list[int]:
    """Every rank on this machine that a launcher started; of one ``job`` only, where one is given. Raises TargetError:
    there is none."""
    known = local_processes()
    found = _ranks(known, job)
    if found:
        return found
    closed = sum(process.is_closed for process in known.values())
    what = "there is no rank on this machine" + (f" of job {job}" if job else "")
    if closed:
        raise TargetError(
            f"{what} that may be looked at",
            why=f"the environment of {closed} Python process{'es' if closed > 1 else ''}, by which a rank is known, "
            "may not be read: another user's",
            help=or_root("run it as the user of the job"),
        )
    raise TargetError(
        what,
        why="a rank is a process with torch in it whose launcher set RANK in its environment",
        help="name one of the processes: dispatch ranks -p PID",
    )


def _ranks(known: Mapping[int, RankProcess], job: str | None) -> list[int]:
    """Processes that were started as ranks, and the dead beside them, of which the kernel keeps no environment."""
    started = [each for each in known.values() if each.rank is not None and (job is None or job in each.jobs)]
    launchers = _launchers(known)
    torch = {each.pid for each in started if _has_torch(each.pid)}
    ranks = [each for each in started if each.pid not in launchers and each.pid in torch]
    ranks = [each for each in ranks if not _inherited(each, known, torch)]
    ranks += _before_torch(started, ranks, launchers, known)
    parents = {each.parent for each in ranks} - {0, 1}
    dead = [each for each in known.values() if each.is_zombie and each.parent in parents]
    return sorted({each.pid for each in (*ranks, *dead)} | _first_ranks(known, [each.pid for each in ranks]))


def _first_ranks(known: Mapping[int, RankProcess], ranks: Sequence[int]) -> set[int]:
    """Processes with torch that have started the others and are rank 0 themselves, as with Lightning's launcher, which
    numbers its children from LOCAL_RANK=1 (_SubprocessScriptLauncher of Lightning 2.6)."""
    below: dict[int, list[RankProcess]] = {}
    for pid in ranks:
        if known[pid].local_rank:
            below.setdefault(known[pid].parent, []).append(known[pid])
    return {
        parent for parent, children in below.items()
        if parent in known and parent not in ranks and known[parent].rank is None
        and not any(each.local_rank == "0" for each in children) and _has_torch(parent)
    }  # fmt: skip


def _before_torch(
    started: Sequence[RankProcess],
    ranks: Sequence[RankProcess],
    launchers: Collection[int],
    known: Mapping[int, RankProcess],
) -> list[RankProcess]:
    """The outermost Python of each rank that no process with torch is.

    PyTorch's own variable makes a rank of a process without torch. Slurm and MPI number whatever they start: a task of
    Slurm's is one where others of its step are, or where its step is the only one that any could be in.
    """
    found = {(each.jobs, each.rank) for each in ranks}
    numbered = [each for each in started if each.rank is not None and (each.rank[0] == _RANK or each.tasks)]
    absent = [each for each in numbered if (each.jobs, each.rank) not in found and each.pid not in launchers]
    pythons = {each.pid for each in started if _is_python(each.pid)} if absent else set()
    absent = [each for each in absent if each.pid in pythons and not _inherited(each, known, pythons)]
    given = [each for each in absent if each.rank is not None and each.rank[0] == _RANK]
    steps = {each.jobs for each in (*ranks, *given)} or {each.jobs for each in absent}
    if not ranks and not given and len(steps) > 1:
        return []
    return [*given, *(each for each in absent if each not in given and each.jobs in steps)]


def _is_python(pid: int) -> bool:
    try:
        return os.path.basename(os.readlink(f"/proc/{pid}/exe")).startswith("python")  # noqa: PTH115, PTH119
    except OSError:
        return False


def _inherited(process: RankProcess, known: Mapping[int, RankProcess], members: Collection[int]) -> bool:
    """It has its environment from another process of that rank that is one of ``members``, as a loader's worker has. A
    shell around the program is none."""
    above = known.get(process.parent)
    while above is not None and (above.jobs, above.rank) == (process.jobs, process.rank):
        if above.pid in members:
            return True
        above = known.get(above.parent)
    return False


def _launchers(known: Mapping[int, RankProcess]) -> set[int]:
    """Processes that launch ranks themselves, though another launcher gave them a number: each task of
    ``srun torchrun`` is one."""
    found = set()
    for process in known.values():
        above = known.get(process.parent)
        while process.rank is not None and above is not None and above.rank is not None:
            if above.rank[0] != process.rank[0]:
                found.add(above.pid)
            above = known.get(above.parent)
    return found


def _below(known: Mapping[int, RankProcess], launcher: int) -> list[int]:
    """The launcher's children that use torch; zombies, of which nothing is left to tell, beside such ones."""
    children = sorted(each.pid for each in known.values() if each.parent == launcher)
    ranks = [pid for pid in children if _has_torch(pid)]
    ranks += [pid for pid in children if pid not in ranks and ranks and known[pid].rank and _is_python(pid)]
    dead = [pid for pid in children if known[pid].is_zombie]
    return sorted([*ranks, *dead, *_first_ranks(known, ranks)]) if ranks and launcher > 1 else []


def _has_torch(pid: int) -> bool:
    try:
        return _TORCH.encode() in supervision.read_file_of(pid, "maps")
    except OSError:
        return False


_MOMENT, _MOMENTS = 0.05, 6
"""Seconds in which a job that runs comes out of the collective that it was seen in; so many times on a busy machine."""
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
    from gdbext.tools.ranks.collector import ProgressOfRanks, combine_looks, is_settled
    from gdbext.torch.measure import measure_for_process

    pids = job_of_process(options.pid) if options.pid is not None else ranks_of_node(options.job)
    if not supervision.is_suspect(pids[0]):
        with lifted():
            measure_for_process(pids[0], 2)
    progress = ProgressOfRanks(pids)
    reports, unreached = _parted(_found([_process(pid) for pid in pids], options))
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
        from gdbext.engine.glibc.pthread import brief_look

        return brief_look(pid)

    look = _look(f"pid {pid}", open_target)
    return look._replace(run=lambda: _supervised(pid, look.run))


def _supervised(pid: int, run: Callable[[], str]) -> str:
    """The report of a look; where the kernel lets nobody read the memory of the process, one without that."""
    if not supervision.is_suspect(pid):
        return run()

    def without_memory() -> bytes:
        from gdbext.diagnosis.session import Session
        from gdbext.engine.targets.live.unstopped import UnreadableProcess

        return table.execute(COMMAND, ["--json"], lambda: Session(UnreadableProcess(pid))).output.encode()

    found = supervision.by_child(lambda: run().encode(), supervision.STUCK_SECONDS)
    if not found:
        found = supervision.by_child(without_memory, supervision.SECOND_SECONDS)
    if not found:
        error = TargetError(f"the kernel does not answer ({supervision.sleepers(pid)})")
        return table.failure(COMMAND, ["--json"], error).output
    return found.decode()


def _core(path: Path, sysroot: str) -> RankSource:
    def open_target() -> Target:
        from gdbext.engine.targets.core_target import CoreTarget

        return CoreTarget(str(path), sysroot)

    return _look(str(path), open_target)


def _recording(path: Path) -> RankSource:
    def open_target() -> Target:
        from gdbext.engine.targets.recording.replay_target import ReplayTarget

        return ReplayTarget.load(str(path))

    return _look(str(path), open_target)


def _look(name: str, open_target: Callable[[], Target]) -> RankSource:
    def run() -> str:
        from gdbext.diagnosis.session import Session

        opened: list[Target] = []

        def open_session() -> Session:
            opened.append(open_target())
            return Session(opened[0])

        try:
            return table.execute(COMMAND, ["--json"], open_session).output
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
    process = _read(report.pid) if report.rank is None else None
    if process is None or process.rank is None or not process.tasks or _has_torch(report.pid):
        return report
    return report._replace(rank=process.rank[1], size=process.tasks, job=process.jobs[0])


def _user(name: str) -> int | None:
    """The user of the process of that look; None for a file, and for a process that has ended."""
    pid = name.rpartition(" ")[2]
    if name != f"pid {pid}":
        return None
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116
    except OSError:
        return None


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
