"""A process and its descendants: found in /proc, looked at by children of ours, and what was seen kept as files.

The looks are processes of their own, some at once, in a private folder (engine/formats/workplace.py), from which whole
files are moved to where the user wants them.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from importlib import import_module
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

_FAMILY_LIMIT = 4096
"""Processes that are followed; so many descendants are found, not more."""
_LOOKS_LIMIT = 64
"""Processes of a family that are looked at."""
_WHOLE_TEXTS = 8
"""Processes whose whole diagnosis is shown; the verdict of the others is."""
_TIMEOUT = 30
"""Seconds that the look at one process may take."""
_WIDTH = 100
"""Most letters of a command line that are shown."""
_DEATH_SIGNAL = 1
"""The option PR_SET_PDEATHSIG of prctl(2) (linux/prctl.h)."""
_STEP = 0.01
ENDINGS = ("txt", "json", "rec")
"""Endings of the files that are kept of each process."""


def descendants(pid: int) -> Iterator[int]:
    """The children of a process, then their children and so on, as far as they can be seen."""
    return (each for generation in _generations(pid) for each in generation)


def _generations(pid: int) -> Iterator[list[int]]:
    """The children of a process, then all children of these, and so on."""
    parents, seen = [pid], {pid}
    while parents and len(seen) < _FAMILY_LIMIT:
        parents = [child for parent in parents for child in _children(parent) if child not in seen]
        seen.update(parents)
        if parents:
            yield parents


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208 - strings are all that is needed
            found += map(int, read_file(pid, f"task/{tid}/children").split())
    except (OSError, TargetError):
        return found
    return found


class ProcessLook(NamedTuple):
    """The verdict on one process. ``text``: the diagnosis as dispatch-diagnose shows it, "" where there is none;
    ``problem`` says why then."""

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


class FamilyEvidence(NamedTuple):
    """The verdicts on a process, which is the first, and on its descendants. The files of process N begin with
    ``start`` and ``-N.``; ``job`` is what the ranks among them are waiting for, "" where there are none."""

    start: str
    looks: tuple[ProcessLook, ...]
    job: str = ""

    @property
    def summary(self) -> str:
        """The verdicts that matter in one line: of the process itself, and of those that are more than idle."""
        first, *others = self.looks
        worse = [each for each in others if each.summary and not kind_of(each.kind).is_quiet]
        return "; ".join([first.summary or first.problem, *(each.line for each in worse[:3])])

    @property
    def text(self) -> str:
        """Everything for people: the diagnosis of each, the verdict on the job, and where it is kept."""
        return "".join(f"{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        whole = 0
        for look in self.looks:
            if look.text and (look is self.looks[0] or (whole < _WHOLE_TEXTS and not kind_of(look.kind).is_quiet)):
                whole += 1
                yield escape(f"process {look.pid} ({look.program}):")
                yield from (f"  {line}" for line in look.text.rstrip().split("\n"))
            else:
                yield escape(look.line)
        if self.job:
            yield "the job:"
            yield from (f"  {line}" for line in self.job.rstrip().split("\n"))
        if any(look.text for look in self.looks):
            yield escape(f"kept: {self.start}-PID.{', .'.join(ENDINGS)}; scripts/dispatch -r FILE.rec looks again")


def prepare() -> None:
    """Import what every look needs, so that a look that is forked from here begins at once."""
    for name in (
        "gdbext.diagnosis.commands.diagnose",
        "gdbext.diagnosis.reporting",
        "gdbext.cpython.threads.runtime",
        "gdbext.cpython.wait_view",
        "gdbext.diagnosis.inspect",
        "gdbext.diagnosis.job.collectives",
        "gdbext.diagnosis.session",
        "gdbext.diagnosis.threads.thread_snapshots",
        "gdbext.torch.layout_choice",
        "gdbext.diagnosis.report.json_report",
        "gdbext.engine.targets.live.proc_target",
        "gdbext.render.plain_json",
        "gdbext.engine.targets.recording.recorder",
        "gdbext.engine.targets.recording.replay_target",
        "gdbext.torch.stack.dispatch_stack",
        "gdbext.diagnosis.verdict.advice",
        "gdbext.diagnosis.commands.diagnose_view",
    ):
        import_module(name)


def look_at_family(
    pid: int,
    folder: str,
    name: str,
    dispatch: Dispatch,
    more: Collection[int] = (),
    tell: Callable[[str], None] | None = None,
) -> FamilyEvidence:
    """Look at a process, its descendants but us, and ``more``, and keep what was seen in ``folder``, in files whose
    names begin with ``name``. Each of them stands still for a moment, and goes on. ``tell`` gets the verdicts a line
    each as they come, before anything is recorded, which takes four times as long. Raises TargetError."""
    prepare()
    generations = [[pid], *_generations(pid), list(more)]
    family = list(dict.fromkeys(each for some in generations for each in some if is_alive(each)))[:_LOOKS_LIMIT]
    if os.getpid() in family:
        family.remove(os.getpid())
    if not family:
        raise TargetError(f"process {pid} has ended")
    stem = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    programs = {each: _program(each) for each in family}
    with Workplace(folder) as place:
        if tell:
            _tell_first(_FirstLooks(stem, place, dispatch, tell), generations, programs)
        for some in generations:  # a parent tells the states of its children, as they are before they are looked at
            _run_together([partial(_look, each, stem, place, dispatch) for each in some if each in family], place)
        looks = tuple(_kept(place, each, programs[each], f"{stem}-{each}") for each in family)
        names = [f"{stem}-{look.pid}" for look in looks if look.text]
        job = _job(place, [f"{name}.json" for name in names], stem, family, dispatch)
        _publish(place, [f"{name}.{ending}" for name in names for ending in ENDINGS])
    return FamilyEvidence(f"{os.path.abspath(folder)}/{stem}", looks, job)  # noqa: PTH100 - a text for people


class _FirstLooks(NamedTuple):
    """The verdicts that are told before anything is recorded: of which names their files are, and to whom."""

    stem: str
    place: Workplace
    dispatch: Dispatch
    tell: Callable[[str], None]

    def name(self, pid: int) -> str:
        """The file of one process."""
        return f"{self.stem}-{pid}.first"

    def look(self, pid: int) -> int:
        """Diagnose one process, in a child of ours."""
        _print_to(self.place, self.name(pid))
        return self.dispatch([*_looked_at(pid), "--json", "dispatch-diagnose"])


def _tell_first(first: _FirstLooks, generations: Sequence[Sequence[int]], programs: Mapping[int, str]) -> None:
    """Tell the verdict of the first process, those of others that are more than idle, and the job's in a line each."""
    ranks = [pid for pid in programs if is_rank(pid)]
    for number, some in enumerate(generations):
        members = [pid for pid in some if pid in programs]

        def ended(at: int, members: Sequence[int] = members, is_first: bool = number == 0) -> None:
            pid = members[at]
            look = _kept(first.place, pid, programs[pid], "", first.name(pid))
            if is_first or not kind_of(look.kind).is_quiet:
                first.tell(escape(look.line))

        _run_together([partial(first.look, pid) for pid in members], first.place, ended)
    if len(ranks) > 1:
        job = _merged(first.place, [first.name(pid) for pid in ranks], f"{first.stem}.first-job", first.dispatch)
        first.tell("".join(f"the job: {line}" for line in job.split("\n")[:1]))


def _looked_at(pid: int) -> list[str]:
    return ["-p", str(pid), "--debugger", "none", "--timeout", str(_TIMEOUT)]


def _look(pid: int, stem: str, place: Workplace, dispatch: Dispatch) -> int:
    """Diagnose and record in a child of ours, then replay for the text."""
    name = f"{stem}-{pid}"
    _print_to(place, f"{name}.json")
    status = dispatch([*_looked_at(pid), "--record", f"{name}.rec", "--json", "dispatch-diagnose"])
    _print_to(place, f"{name}.txt")
    return status or dispatch(["-r", f"{name}.rec", "dispatch-diagnose"])


def _print_to(place: Workplace, name: str) -> None:
    made = place.create(name)
    os.dup2(made, 1)
    os.close(made)


def _kept(place: Workplace, pid: int, program: str, name: str, file: str = "") -> ProcessLook:
    """The verdict that a look has left in ``place``."""
    try:
        report = json_report.parse(place.data(file or f"{name}.json"), name)
    except (OSError, GdbextError):
        return ProcessLook(pid, program, "", "", "", "the look at it left no report")
    if not report.verdict:
        return ProcessLook(pid, program, "", "", "", report.problem or "the look at it left no verdict")
    try:
        text = place.read(f"{name}.txt")
    except OSError:
        text = ""
    return ProcessLook(pid, program, report.verdict.kind.value, report.verdict.summary, text, report.problem)


def _publish(place: Workplace, names: Sequence[str]) -> None:
    try:
        for name in names:
            place.publish(name)
    except OSError as error:
        raise TargetError(f"the diagnosis cannot be kept: {error.strerror}", help="name another folder") from error


def _job(place: Workplace, reports: list[str], stem: str, family: Sequence[int], dispatch: Dispatch) -> str:
    """The merged verdict on the ranks of the family; "" where less than two of them are ranks."""
    if sum(is_rank(pid) for pid in family) < 2 or len(reports) < 2:
        return ""
    text = _merged(place, reports, f"{stem}.job.txt", dispatch)
    with contextlib.suppress(OSError):
        place.publish(f"{stem}.job.txt")
    return text


def _merged(place: Workplace, reports: Sequence[str], name: str, dispatch: Dispatch) -> str:
    """The text of dispatch ranks on these reports, which stays in a file of that name; "" where there is none."""

    def merge() -> int:
        _print_to(place, name)
        return dispatch(["ranks", "--reports", *reports])

    _run_together([merge], place)
    try:
        return place.read(name)
    except OSError:
        return ""


def is_rank(pid: int) -> bool:
    """A launcher of PyTorch's gave it a rank, or that is in its environment as another one would say it."""
    try:
        return rank_of(parse_environ(read_file(pid, "environ"))) is not None
    except GdbextError:
        return False


def _program(pid: int) -> str:
    try:
        return cut(command_text(read_command(pid)), _WIDTH)
    except GdbextError:
        return "?"


# --- processes of our own ------------------------------------------------------------------------


def _run_together(
    works: Sequence[Callable[[], int]], place: Workplace, ended: Callable[[int], None] = lambda _: None
) -> None:
    """Run each in a child of ours, one for each processor at once; one that takes far too long is killed. ``ended`` is
    called with the number of each that has ended."""
    waiting, running = list(enumerate(works))[::-1], dict[int, tuple[int, float]]()
    while waiting or running:
        while waiting and len(running) < max(2, os.cpu_count() or 1):
            number, work = waiting.pop()
            running[start_child(work, place)] = number, time.monotonic() + 2 * _TIMEOUT
        for child, (number, deadline) in list(running.items()):
            if time.monotonic() > deadline:
                os.kill(child, signal.SIGKILL)
            if os.waitpid(child, os.WNOHANG)[0]:
                del running[child]
                ended(number)
        time.sleep(_STEP if running else 0)


def start_child(work: Callable[[], int], place: Workplace) -> int:
    """Fork a process whose current folder is ``place`` and whose errors nobody sees; its id. It ends with us."""
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
    """Have the kernel send this process a signal when its parent ends (prctl(2), PR_SET_PDEATHSIG)."""
    libc.prctl(_DEATH_SIGNAL, number)


def run_aside(dispatch: Dispatch, words: list[str], place: Workplace, output: str) -> int:
    """``dispatch`` with these words in a process of its own, in whose current folder ``place`` it prints to a file; the
    exit status. Raises TargetError where it failed on a full disk."""
    status = os.waitstatus_to_exitcode(os.waitpid(start_aside(dispatch, words, place, output), 0)[1])
    if status:
        place.check_room()
    return status


def start_aside(
    dispatch: Dispatch, words: list[str], place: Workplace, output: str, prepare: Callable[[], None] = lambda: None
) -> int:
    """Start it as ``run_aside`` does, without waiting for it: the process id. ``prepare`` is called in the child
    first."""

    def work() -> int:
        prepare()
        _print_to(place, output)
        return dispatch(words)

    return start_child(work, place)


def end_processes(pids: Collection[int], patience: float, first: int = signal.SIGTERM) -> None:
    """Ask processes to end, and kill those that still live after ``patience`` seconds. Stopped ones go on for it."""
    for number in (first, signal.SIGCONT):
        _signal_all(pids, number)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(map(is_alive, pids)):
        time.sleep(_STEP)
    _signal_all([pid for pid in pids if is_alive(pid)], signal.SIGKILL)


def _signal_all(pids: Collection[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
