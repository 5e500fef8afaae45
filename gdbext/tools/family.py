"""Diagnoses a process and its descendants by child processes, and keeps the results as files.

Each diagnosis is a process of its own, several at once, in a private folder (engine/formats/workplace.py), from which
complete files are moved to where the user wants them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.job import rank_of
from gdbext.diagnosis.kinds import kind_of
from gdbext.diagnosis.report import json_report
from gdbext.engine import libc
from gdbext.engine.formats.workplace import Workplace
from gdbext.engine.targets.live.local_process import read_command, read_file
from gdbext.engine.targets.system.linux import command_text, is_alive, parse_environ
from gdbext.engine.terminal import cut
from gdbext.errors import GdbextError, TargetError
from gdbext.render import escape

if TYPE_CHECKING:
    from gdbext.tools.program import Dispatch

_WHOLE_TEXTS = 8
"""Processes whose whole diagnosis is shown; for the others only the verdict is."""
_TIMEOUT = 30
"""Seconds that the diagnosis of one process may take."""
ENDINGS = ("txt", "json", "rec")
"""Endings of the files that are kept of each process."""


def descendants(pid: int) -> Iterator[int]:
    """The children of a process, then their children and so on, as far as they can be seen."""
    return chain.from_iterable(_generations(pid))


def _generations(pid: int) -> Iterator[list[int]]:
    """The children of a process, then all children of these, and so on; few more than 4096."""
    parents, seen = [pid], {pid}
    while parents and len(seen) < 4096:
        parents = [child for parent in parents for child in _children(parent) if child not in seen]
        seen.update(parents)
        if parents:
            yield parents


def _children(pid: int) -> list[int]:
    """The pids of a process's children, as far as they can be seen."""
    children: list[int] = []
    with contextlib.suppress(OSError, TargetError):
        for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - strings are all that is needed
            children += map(int, read_file(pid, f"task/{tid}/children").split())
    return children


class ProcessVerdict(NamedTuple):
    """The verdict on one process; ``kind`` is "" for none. ``text``: the output of dispatch-diagnose; if it is "",
    ``problem`` says why."""

    pid: int
    program: str
    kind: str
    summary: str
    text: str
    problem: str = ""

    @property
    def line(self) -> str:
        """The verdict in one line."""
        return f"process {self.pid} ({self.program}): {self.summary or self.problem}"

    @property
    def is_quiet(self) -> bool:
        """True if the verdict is idle or less."""
        return kind_of(self.kind).is_quiet


class ProcessTreeReport(NamedTuple):
    """The verdicts on a process, the first one, and on its descendants. The files of process N begin with
    ``path_prefix`` and ``-N.``; ``job`` is the text of the verdict on the ranks among them, "" if there are none."""

    path_prefix: str
    verdicts: tuple[ProcessVerdict, ...]
    job: str = ""

    @property
    def summary(self) -> str:
        """One line with the verdicts on the process itself and on three others that are more than idle."""
        first, *others = self.verdicts
        worse = [verdict.line for verdict in others if verdict.summary and not verdict.is_quiet]
        return "; ".join([first.summary or first.problem, *worse[:3]])

    @property
    def text(self) -> str:
        """Everything for people: the diagnosis of each, the verdict on the job, and the files."""
        lines, whole = [], 0
        for verdict in self.verdicts:
            if verdict.text and (verdict is self.verdicts[0] or (whole < _WHOLE_TEXTS and not verdict.is_quiet)):
                whole += 1
                lines.append(escape(f"process {verdict.pid} ({verdict.program}):"))
                lines += (f"  {line}" for line in verdict.text.rstrip().split("\n"))
            else:
                lines.append(escape(verdict.line))
        if self.job:
            lines += ["the job:", *(f"  {line}" for line in self.job.rstrip().split("\n"))]
        if any(verdict.text for verdict in self.verdicts):
            files = f"{self.path_prefix}-PID.{', .'.join(ENDINGS)}"
            lines.append(escape(f"kept: {files}; to examine it again: scripts/dispatch -r FILE.rec"))
        return "".join(f"{line}\n" for line in lines)


def prepare(*others: str) -> None:
    """Import the modules that every diagnosis needs, and ``others``, so that forked processes start faster."""
    recording = "gdbext.engine.targets.recording"
    needed = ("gdbext.diagnosis.commands.diagnose", "gdbext.diagnosis.job.collectives")
    for name in (*needed, f"{recording}.recorder", f"{recording}.replay_target", *others):
        import_module(name)


def diagnose_tree(
    pid: int,
    folder: str,
    name: str,
    dispatch: Dispatch,
    others: Collection[int] = (),
    tell: Callable[[str], None] | None = None,
) -> ProcessTreeReport:
    """Diagnose process ``pid``, its descendants except us, and ``others``, and keep the results in ``folder``, in files
    whose names begin with ``name``. Each process is stopped for a moment. ``tell`` is called with each verdict, a line,
    before anything is recorded, which takes four times as long. Raises TargetError."""
    prepare()
    generations = [[pid], *_generations(pid), list(others)]
    alive = (pid for generation in generations for pid in generation if is_alive(pid) and pid != os.getpid())
    family = list(dict.fromkeys(alive))[:64]
    if not family:
        raise TargetError(f"process {pid} has exited")
    generations = [[pid for pid in generation if pid in family] for generation in generations]
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    programs = dict.fromkeys(family, "?")
    for process in family:
        with contextlib.suppress(GdbextError):
            programs[process] = cut(command_text(read_command(process)), 100)
    ranks = [pid for pid in family if is_rank(pid)]
    with Workplace(folder) as place:
        if tell:
            _tell_first_verdicts(stem, place, dispatch, tell, generations, programs)
            if len(ranks) > 1:
                reports = [f"{stem}-{pid}.first" for pid in ranks]
                job = _merged(place, reports, f"{stem}.first-job", dispatch)
                tell("".join(f"the job: {line}" for line in job.split("\n")[:1]))
        for generation in generations:  # parents first: they tell the states of children before these are stopped
            _run_together([partial(_diagnose_and_record, pid, stem, place, dispatch) for pid in generation], place)
        verdicts = tuple(_read_verdict(place, pid, programs[pid], f"{stem}-{pid}.json") for pid in family)
        names = [f"{stem}-{verdict.pid}" for verdict in verdicts if verdict.text]
        job = ""
        if len(ranks) > 1 and len(names) > 1:
            job = _merged(place, [f"{name}.json" for name in names], f"{stem}.job.txt", dispatch)
            with contextlib.suppress(OSError):
                place.publish(f"{stem}.job.txt")
        try:
            for file in [f"{name}.{ending}" for name in names for ending in ENDINGS]:
                place.publish(file)
        except OSError as error:
            what = f"the diagnosis cannot be kept: {error.strerror}"
            raise TargetError(what, help="name another folder") from error
    return ProcessTreeReport(f"{os.path.abspath(folder)}/{stem}", verdicts, job)  # noqa: PTH100 - a text for people


def _tell_first_verdicts(
    stem: str,
    place: Workplace,
    dispatch: Dispatch,
    tell: Callable[[str], None],
    generations: Sequence[Sequence[int]],
    programs: Mapping[int, str],
) -> None:
    """Diagnose all processes without recording them, to files ``STEM-PID.first``; ``tell`` the verdict on the first
    process, and on each other one that is more than idle. ``programs``: pid → command line."""

    def diagnose(pid: int) -> int:
        _print_to(place, f"{stem}-{pid}.first")
        return dispatch([*_target_options(pid), "--json", "dispatch-diagnose"])

    for generation in generations:

        def show(number: int, generation: Sequence[int] = generation) -> None:
            """Tell the verdict on the process at that index of its generation."""
            pid = generation[number]
            verdict = _read_verdict(place, pid, programs[pid], f"{stem}-{pid}.first")
            if generation is generations[0] or not verdict.is_quiet:
                tell(escape(verdict.line))

        _run_together([partial(diagnose, pid) for pid in generation], place, show)


def _target_options(pid: int) -> list[str]:
    return ["-p", str(pid), "--debugger", "none", "--timeout", str(_TIMEOUT)]


def _diagnose_and_record(pid: int, stem: str, place: Workplace, dispatch: Dispatch) -> int:
    """Diagnose and record a process, then replay the recording for the text; runs in a child. The exit status."""
    name = f"{stem}-{pid}"
    _print_to(place, f"{name}.json")
    status = dispatch([*_target_options(pid), "--record", f"{name}.rec", "--json", "dispatch-diagnose"])
    _print_to(place, f"{name}.txt")
    return status or dispatch(["-r", f"{name}.rec", "dispatch-diagnose"])


def _read_verdict(place: Workplace, pid: int, program: str, json_name: str) -> ProcessVerdict:
    """The verdict in the report ``json_name`` in ``place``, with the text beside it if there is one."""
    try:
        report = json_report.parse(place.data(json_name), json_name)
    except (OSError, GdbextError):
        return ProcessVerdict(pid, program, kind="", summary="", text="", problem="its examination left no report")
    if not report.verdict:
        return ProcessVerdict(pid, program, "", "", "", report.problem or "its examination left no verdict")
    text = ""
    with contextlib.suppress(OSError):
        text = place.read(f"{json_name.removesuffix('.json')}.txt")
    return ProcessVerdict(pid, program, report.verdict.kind.value, report.verdict.summary, text, report.problem)


def _print_to(place: Workplace, name: str) -> None:
    """Make standard output a new file."""
    output = place.create(name)
    os.dup2(output, 1)
    os.close(output)


def _merged(place: Workplace, reports: Sequence[str], name: str, dispatch: Dispatch) -> str:
    """The output of ``dispatch ranks --reports``, which is also kept as the file ``name``; "" if it fails."""

    def merge() -> int:
        _print_to(place, name)
        return dispatch(["ranks", "--reports", *reports])

    _run_together([merge], place)
    try:
        return place.read(name)
    except OSError:
        return ""


def is_rank(pid: int) -> bool:
    """True if the environment has a rank: torchrun's RANK or another launcher's variable."""
    try:
        return rank_of(parse_environ(read_file(pid, "environ"))) is not None
    except GdbextError:
        return False


def _run_together(
    works: Sequence[Callable[[], int]], place: Workplace, on_exit: Callable[[int], None] = lambda _: None
) -> None:
    """Run each in a child process, as many at once as there are CPUs. A child is killed after 2 * _TIMEOUT; ``on_exit``
    is called with the index of each that has exited."""
    waiting, running = list(enumerate(works))[::-1], dict[int, tuple[int, float]]()  # pid → index, deadline
    while waiting or running:
        while waiting and len(running) < max(2, os.cpu_count() or 1):
            index, work = waiting.pop()
            running[start_child(work, place)] = index, time.monotonic() + 2 * _TIMEOUT
        for child, (index, deadline) in list(running.items()):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            if os.waitpid(child, os.WNOHANG)[0]:
                del running[child]
                on_exit(index)
        time.sleep(0.01 if running else 0)


def start_child(work: Callable[[], int], place: Workplace) -> int:
    """Fork a process that runs ``work`` in the folder ``place``, without standard error, and exits with its result.
    Returns its pid. It is killed when we exit."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        end_with_parent(signal.SIGKILL)
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        place.enter()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        status = work()
    finally:
        os._exit(status)


def end_with_parent(number: int) -> None:
    """Have the kernel send this process a signal when its parent exits (prctl(2), PR_SET_PDEATHSIG)."""
    libc.prctl(1, number)


def run_aside(dispatch: Dispatch, words: list[str], place: Workplace, output: str) -> int:
    """Run ``dispatch`` with these words in a child process in the folder ``place``, where it prints to the file
    ``output``. Returns the exit status. Raises TargetError if it failed on a full disk."""
    status = os.waitstatus_to_exitcode(os.waitpid(start_aside(dispatch, words, place, output), 0)[1])
    if status:
        place.check_room()
    return status


def start_aside(
    dispatch: Dispatch, words: list[str], place: Workplace, output: str, prepare: Callable[[], None] = lambda: None
) -> int:
    """Start what ``run_aside`` runs and return its pid at once. The child calls ``prepare`` first."""

    def work() -> int:
        prepare()
        _print_to(place, output)
        return dispatch(words)

    return start_child(work, place)


def end_processes(pids: Collection[int], patience: float, first: int = signal.SIGTERM) -> None:
    """Send the signal ``first``, resume stopped processes; kill those that live after ``patience`` seconds."""

    def send(pids: Collection[int], number: int) -> None:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    send(pids, first)
    send(pids, signal.SIGCONT)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(map(is_alive, pids)):
        time.sleep(0.01)
    send([pid for pid in pids if is_alive(pid)], signal.SIGKILL)
