"""Does a process still get on? Asked every few seconds, of /proc and of one kernel probe; nobody is stopped.

How much a process and its children have done: processor time and bytes, from /proc, without stopping anybody.

Fields: proc(5); stat's 14th to 17th, io's rchar and wchar (which need the right to trace), task/TID/children.

And what the last minutes looked like: dispatches by operator and where the threads were, without stopping anybody.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report import json_report
from gdbext.diagnosis.report.thread_report import RunState
from gdbext.engine.formats.workplace import Workplace
from gdbext.engine.targets.live.local_process import read_file
from gdbext.engine.targets.live.proc_checks import parent
from gdbext.engine.targets.live.supervision import is_suspect, read_file_of
from gdbext.engine.targets.system.linux import stat_fields
from gdbext.engine.terminal import cut
from gdbext.engine.vocabulary import counted, duration
from gdbext.errors import GdbextError, NotPermitted, TargetError, TargetGone
from gdbext.tools.family import descendants, end_processes, start_aside
from gdbext.tools.probes.summary import TopSection

if TYPE_CHECKING:
    from gdbext.tools.probes.dispatch_counter import DispatchActivity
    from gdbext.tools.program import Dispatch


class ProcessActivity(NamedTuple):
    """Sums over the process and all its descendants. ``seconds`` of processor time, ended children included;
    ``transferred`` bytes read and written, also through pipes and sockets."""

    seconds: float
    transferred: int
    processes: int


def activity(pid: int) -> ProcessActivity:
    """The work that has been done so far. Raises TargetGone."""
    ticks, transferred, count = _ticks(pid), _bytes(pid), 1
    for child in descendants(pid):
        try:
            ticks += _ticks(child)
            transferred += _bytes(child)
            count += 1
        except TargetGone:
            continue
    return ProcessActivity(ticks / os.sysconf("SC_CLK_TCK"), transferred, count)


def _ticks(pid: int) -> int:
    fields = stat_fields(read_file(pid, "stat"))
    if len(fields) < 15 or fields[0] in ("Z", "X"):
        raise TargetGone.of(pid)
    return sum(int(each) for each in fields[11:15])


def _bytes(pid: int) -> int:
    try:
        lines = read_file(pid, "io").splitlines()
    except NotPermitted:
        return 0
    return sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar", b"wchar")))


def uses_torch(pid: int) -> bool:
    """libtorch_cpu.so is mapped, and may be looked at: the kernel answers. Raises TargetGone."""
    try:
        return not is_suspect(pid) and b"/libtorch_cpu.so" in read_file_of(pid, "maps")
    except OSError as error:
        if isinstance(error, TimeoutError) or error.errno == errno.EFBIG:
            return False
        raise TargetGone.of(pid) from error


def with_torch(pid: int) -> tuple[int, ...]:
    """The process where it uses PyTorch, else those of its descendants that do and whose parents do not: what a wrapper
    (timeout, bash, torchrun) has started. Raises TargetGone: the process is gone."""
    if uses_torch(pid):
        return (pid,)
    found: list[int] = []
    inside: set[int] = set()
    for each in descendants(pid):
        if parent(each) in inside:
            inside.add(each)
            continue
        try:
            if uses_torch(each):
                found.append(each)
                inside.add(each)
        except TargetGone:
            continue
    return tuple(found)


BUSY = 0.05
"""The share of a processor: threads that wait in a timed wait, as those for Python's GIL do, use less."""
TRANSFER = 1 << 16
"""Bytes between two looks that count as progress: a line of a log does not."""
_WINDOW = 1.0
"""Seconds for which a dispatch is waited for."""


class ProcessProgress(NamedTuple):
    """``moves``: it dispatches, reads or writes, or at least computes. ``computes_only``: it computes, but a probe saw
    no dispatch."""

    moves: bool
    computes_only: bool = False
    dispatches: int = 0
    """Dispatches that a short look at the probe saw; it is not asked where bytes have moved."""


class ProgressWatch:
    """Watches the progress of one process."""

    def __init__(self, pid: int) -> None:
        """Open the process. Raises TargetGone."""
        self._pid = pid
        self._before: ProcessActivity = activity(pid)
        self._looked = time.monotonic()
        self.pulse: DispatchActivity | None = None

    def look(self) -> ProcessProgress:
        """The work since the last look. Raises TargetGone."""
        now, then = time.monotonic(), self._looked
        current, before = activity(self._pid), self._before
        self._before, self._looked = current, now
        transferred = current.transferred - before.transferred
        computes = current.seconds - before.seconds > BUSY * (now - then)
        if transferred > TRANSFER or current.processes != before.processes:
            return ProcessProgress(True)
        dispatches = self._dispatches(now - then)
        if dispatches:
            return ProcessProgress(True, dispatches=dispatches)
        return ProcessProgress(computes, computes and self.pulse is not None)

    def _dispatches(self, interval: float) -> int:
        if not self.pulse:
            return 0
        try:
            return self.pulse.seen(min(_WINDOW, interval / 2))
        except (GdbextError, OSError):
            self.pulse = None  # another user's probes, or the program was replaced: what /proc says must do
            return 0


# --- the last minutes ----------------------------------------------------------------------------

_USUAL_PERIOD = 30.0
"""Seconds between two looks of a history; less where fewer than _FEWEST looks would fit in."""
_FEWEST, _MOST = 20, 240
"""Looks that a history has: the longer it is, the rarer they are."""
_COUNTED = 1.0
"""Seconds for which dispatches are counted at each look."""
_THREADS, _FRAMES, _OPERATORS = 6, 4, 8
"""Threads, Python frames of each, and operators that are kept of a look."""
_WIDTH = 200
"""Most letters of a name, a place, or a line that says what changed."""
_LARGEST = 32 << 20
"""Bytes that a report of one look may have on the disk."""
_MAJOR, _MINOR = 0.2, 0.05
"""Shares of all dispatches: an operator with the first one in a look, and less than the second in the next, is a
change."""


class HistoryLook(NamedTuple):
    """One look: when (seconds since the epoch), calls of operators a second in all and of the most called ones, and the
    threads that do anything, each with its state and its innermost places in the program's own files."""

    time: float
    total: float | None
    """None: they were not counted, ``problem`` says why."""
    rates: tuple[tuple[str, float], ...] = ()
    threads: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    problem: str = ""


class History:
    """Looks at process ``pid`` every half minute or so, by children of ours, and keeps those of the last ``span``
    seconds: a few hundred short texts, and two files."""

    def __init__(self, pid: int, span: float, folder: str, dispatch: Dispatch) -> None:
        """``dispatch`` is scripts/dispatch. Raises TargetError where nothing can be written to ``folder``."""
        self._pid, self._span, self._dispatch = pid, span, dispatch
        self.period = max(span / _MOST, min(_USUAL_PERIOD, span / _FEWEST))
        self._looks: deque[HistoryLook] = deque(maxlen=_MOST + 1)
        self._place = Workplace(folder)
        self._children: list[int] = []
        self._began = self._due = 0.0

    def keep(self) -> None:
        """Take in the look that has ended, and begin the next one when it is time; never waits."""
        if self._children:
            self._children = [child for child in self._children if not os.waitpid(child, os.WNOHANG)[0]]
            if self._children:
                return
            self._looks.append(self._read())
        if time.monotonic() >= self._due:
            self._due = time.monotonic() + self.period
            self._began = time.time()
            whom = ["-p", str(self._pid), "--json"]
            top = ["dispatch-top", "--interval", f"{_COUNTED:g}", "--limit", "200"]
            works = ([*whom, *top], "top.json"), ([*whom, "--no-stop", "all-threads"], "threads.json")
            self._children = [start_aside(self._dispatch, words, self._place, name, _little) for words, name in works]

    def take(self, stem: str) -> tuple[str, list[str]]:
        """Write it to the file whose name begins with ``stem``: the ending of that, and the lines that say what
        changed. Raises TargetError."""
        looks = [each for each in self._looks if each.time >= time.time() - self._span - self.period]
        summary = list(_summary(looks))
        head = f"The last {duration(self._span)} of process {self._pid}, a look every {duration(self.period)}; nobody"
        lines = [
            f"{head} was stopped.",
            "",
            *summary,
            "",
            "each look:",
            *(line for each in looks for line in _whole(each)),
        ]
        name = f"{stem}.history.txt"
        try:
            self._place.write(name, "".join(f"{line}\n" for line in lines))
            self._place.publish(name)
        except OSError as error:
            raise TargetError(f"the history cannot be kept: {error.strerror}", help="name another --save") from error
        return "history.txt", summary

    def end(self) -> None:
        """Nobody wants it any more."""
        end_processes(self._children, 5.0)
        for child in self._children:
            os.waitpid(child, 0)
        self._children = []
        self._place.close()

    def _read(self) -> HistoryLook:
        """Read the reports that the two children have left."""
        rates, problem = _rates(self._place.data("top.json"))
        threads = _threads(self._place.data("threads.json"))
        total = None if problem else sum(rates.values())
        return HistoryLook(self._began, total, tuple(Counter(rates).most_common(_OPERATORS)), threads, problem)


def _little() -> None:
    """Let a child write no large files."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LARGEST, _LARGEST))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def _rates(data: bytes) -> tuple[dict[str, float], str]:
    """Calls a second by operator, and why they are not known."""
    try:
        report = json_report.parse(data, "the report on its operators", TopSection)
    except GdbextError:
        return {}, "it left no report"
    top = report.find_section(TopSection)
    if not top:
        return {}, report.problem or "it left no report"
    found: dict[str, float] = {}
    for row in top.rows:
        op, event = row.subject.op, row.subject.event
        if op and event and event.startswith("call"):
            found[op] = found.get(op, 0.0) + row.rate
    return found, ""


def _threads(data: bytes) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """The threads that are not idle, the main one first, as HistoryLook has them."""
    try:
        report = json_report.parse(data, "the report on its threads")
    except GdbextError:
        return ()
    found: list[tuple[str, str, tuple[str, ...]]] = []
    for thread in report.threads:
        if thread.state is RunState.IDLE or len(found) == _THREADS:
            continue
        places = [cut(frame.place, _WIDTH) for frame in thread.python_frames if frame.file and frame.is_users]
        kind = f", {thread.wait.kind.value}" if thread.wait else ""
        name = thread.python_name or thread.name or "thread"
        state = f"{thread.state.value}{kind}"
        found.append((cut(f"{name} (tid {thread.tid})", _WIDTH), state, tuple(places[:_FRAMES])))
    return tuple(found)


def _is_alike(one: HistoryLook, other: HistoryLook) -> bool:
    """The process did the same in both: it called the same operators, about as often; where none was called or counted,
    its first thread stood in the same function."""
    if one.total and other.total:
        shares = [{op: rate / look.total for op, rate in look.rates if look.total} for look in (one, other)]
        major = {op for share in shares for op, part in share.items() if part >= _MAJOR}
        kept = all(share.get(op, 0) >= _MINOR for share in shares for op in major)
        return kept and 0.5 <= one.total / other.total <= 2
    return one.total == other.total and _function(one) == _function(other)


def _function(look: HistoryLook) -> str:
    place = _place(look)
    return place.partition(":")[0] + place.rpartition("(")[2]


def _place(look: HistoryLook) -> str:
    """The first thread's innermost place in the program's own files, else its state."""
    if not look.threads:
        return ""
    _name, state, places = look.threads[0]
    return places[0] if places else state


def _summary(looks: Sequence[HistoryLook]) -> Iterator[str]:
    """Two lines for each stretch of time in which the process did the same."""
    if not looks:
        yield "nothing was seen yet"
        return
    stretches: list[list[HistoryLook]] = []
    for look in looks:
        if stretches and _is_alike(stretches[-1][-1], look):
            stretches[-1].append(look)
        else:
            stretches.append([look])
    for stretch in stretches:
        first, last = (_clock(stretch[at].time) for at in (0, -1))
        yield (
            f"{first} to {last}  {_dispatches(stretch[len(stretch) // 2])}"
            if len(stretch) > 1
            else (f"{first}              {_dispatches(stretch[0])}")
        )
        places = Counter(filter(None, map(_place, stretch))).most_common(2)
        if places:
            often = (f" ({counted(times, 'time')})" if len(stretch) > 1 else "" for _, times in places)
            named = ", ".join(f"{place}{times}" for (place, _), times in zip(places, often))
            yield f"{'':22}{next(look.threads[0][0] for look in stretch if look.threads)}: {named}"


def _dispatches(look: HistoryLook) -> str:
    if look.total is None:
        return f"dispatches are not known: {look.problem}"
    if not look.total:
        return "nothing was dispatched"
    most = ", ".join(f"{op} {rate:,.0f}" for op, rate in look.rates[:4])
    return f"{look.total:,.0f} calls of operators a second: {most}"


def _whole(look: HistoryLook) -> Iterator[str]:
    """All that is kept of a look."""
    yield f"{_clock(look.time)}  {_dispatches(look)}"
    for name, state, places in look.threads:
        yield f"    {name}, {state}" + "".join(f"\n        {place}" for place in places)


def _clock(moment: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(moment))
