"""Whether a process makes progress, by /proc and one kernel probe, and a history of its last minutes; no process is
stopped.
"""

from __future__ import annotations

import errno
import os
import resource
import signal
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report import json_report
from gdbext.diagnosis.report.thread_report import RunState
from gdbext.engine.formats.workplace import Workplace
from gdbext.engine.targets.live.local_process import read_file
from gdbext.engine.targets.live.proc_checks import parent
from gdbext.engine.targets.live.supervision import may_block_readers, read_proc_file
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
    """Sums over a process and all its descendants since they started."""

    seconds: float
    """CPU time, including that of children that have exited."""
    transferred: int
    """Bytes read and written, also through pipes and sockets."""
    processes: int
    """Number of these processes."""


def activity(pid: int) -> ProcessActivity:
    """The activity of a process and its descendants. Raises TargetGone."""
    work = [_work_of_process(pid)]
    for child in descendants(pid):
        with suppress(TargetGone):
            work.append(_work_of_process(child))
    ticks, transferred = map(sum, zip(*work))
    return ProcessActivity(ticks / os.sysconf("SC_CLK_TCK"), transferred, len(work))


def _work_of_process(pid: int) -> tuple[int, int]:
    """(clock ticks of CPU time, bytes read and written) of one process: fields 14 to 17 of its stat, rchar and wchar of
    io, which needs the right to trace (proc(5)). Raises TargetGone."""
    fields = stat_fields(read_file(pid, "stat"))
    if len(fields) < 15 or fields[0] in ("Z", "X"):
        raise TargetGone.of(pid)
    transferred = 0
    with suppress(NotPermitted):
        lines = read_file(pid, "io").splitlines()
        transferred = sum(int(line.split()[1]) for line in lines if line.startswith((b"rchar", b"wchar")))
    return sum(map(int, fields[11:15])), transferred


def uses_torch(pid: int) -> bool:
    """True if libtorch_cpu.so is mapped, and the maps can be read without blocking. Raises TargetGone."""
    try:
        return not may_block_readers(pid) and b"/libtorch_cpu.so" in read_proc_file(pid, "maps")
    except OSError as error:
        if isinstance(error, TimeoutError) or error.errno == errno.EFBIG:
            return False
        raise TargetGone.of(pid) from error


def with_torch(pid: int) -> tuple[int, ...]:
    """The process if it uses PyTorch, else those of its descendants that do and have no ancestor that does: a wrapper
    (timeout, bash, torchrun) has started them. Raises TargetGone if the process has exited."""
    if uses_torch(pid):
        return (pid,)
    topmost: list[int] = []
    covered: set[int] = set()  # the topmost ones and their descendants
    for process in descendants(pid):
        if parent(process) in covered:
            covered.add(process)
            continue
        with suppress(TargetGone):
            if uses_torch(process):
                topmost.append(process)
                covered.add(process)
    return tuple(topmost)


BUSY = 0.05
"""The share of a CPU that counts as progress: threads in timed waits, such as those for Python's GIL, use less."""
TRANSFER = 1 << 16
"""Bytes between two samples that count as progress: a line of a log does not."""


class ProcessProgress(NamedTuple):
    """What a process did since the last sample."""

    moves: bool
    """It dispatched, read or wrote, or at least computed."""
    computes_only: bool = False
    """It computed, but the probe saw no dispatch."""
    dispatches: int = 0
    """Number that the probe saw within a second; 0 also if the probe was not needed, because bytes were transferred."""


class ProgressWatch:
    """Compares samples of the activity of a process and its descendants."""

    def __init__(self, pid: int) -> None:
        """Take the first sample. Raises TargetGone."""
        self._pid = pid
        self._before: ProcessActivity = activity(pid)
        self._time = time.monotonic()
        self.activity_probe: DispatchActivity | None = None
        """The probe that sees dispatches, if one can be used."""

    def since_last_look(self) -> ProcessProgress:
        """The progress since the last call. Raises TargetGone."""
        now, then = time.monotonic(), self._time
        current, before = activity(self._pid), self._before
        self._before, self._time = current, now
        computes = current.seconds - before.seconds > BUSY * (now - then)
        if current.transferred - before.transferred > TRANSFER or current.processes != before.processes:
            return ProcessProgress(moves=True)
        dispatches = 0
        if self.activity_probe:
            try:
                dispatches = self.activity_probe.wait_for_dispatch(min(1.0, (now - then) / 2))
            except (GdbextError, OSError):
                self.activity_probe = None  # the program may have been replaced; use /proc alone from now on
        if dispatches:
            return ProcessProgress(moves=True, dispatches=dispatches)
        return ProcessProgress(computes, computes and self.activity_probe is not None)


_MOST = 240
"""Most samples that a history has."""
_THREADS, _FRAMES, _OPERATORS = 6, 4, 8
"""Most threads, Python frames of each, and operators that a sample has."""
_WIDTH = 200
"""Most characters of a name or place."""


class HistoryLook(NamedTuple):
    """One sample of a history."""

    time: float
    """Seconds since the epoch."""
    total: float | None
    """Operator calls a second; None if they were not counted, for the reason ``problem``."""
    rates: tuple[tuple[str, float], ...] = ()
    """(operator, calls a second) of the most called ones."""
    threads: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """(name, state, innermost places in the program's own files) of the threads that are not idle."""
    problem: str = ""

    @property
    def dispatches(self) -> str:
        """``240 operator calls a second: aten::mm 130, aten::relu 110``."""
        if self.total is None:
            return f"dispatches are unknown: {self.problem}"
        if not self.total:
            return "nothing was dispatched"
        most = ", ".join(f"{op} {rate:,.0f}" for op, rate in self.rates[:4])
        return f"{self.total:,.0f} operator calls a second: {most}"

    @property
    def current_place(self) -> str:
        """The first thread's innermost place in the program's own files, else its state."""
        if not self.threads:
            return ""
        _name, state, places = self.threads[0]
        return places[0] if places else state

    @property
    def clock(self) -> str:
        return time.strftime("%H:%M:%S", time.localtime(self.time))


class History:
    """Samples a process about every half minute, by child processes, and keeps the last samples."""

    def __init__(self, pid: int, span: float, folder: str, dispatch: Dispatch) -> None:
        """``span``: seconds of the history; ``folder``: for temporary files, and the history when it is saved;
        ``dispatch`` runs scripts/dispatch. Raises TargetError if ``folder`` is not writable."""
        self._pid, self._span, self._dispatch = pid, span, dispatch
        # Half a minute; less if the span had fewer than 20 samples, more if it had more than _MOST.
        self.period = max(span / _MOST, min(30.0, span / 20))
        self._looks: deque[HistoryLook] = deque(maxlen=_MOST + 1)
        self._place = Workplace(folder)
        self._children: list[int] = []
        self._began = self._due = 0.0

    def keep(self) -> None:
        """Store the sample whose child processes have exited, and start the next one when it is due; never waits."""
        if self._children:
            self._children = [child for child in self._children if not os.waitpid(child, os.WNOHANG)[0]]
            if self._children:
                return
            rates, problem = _rates(self._place.data("top.json"))
            threads = _threads(self._place.data("threads.json"))
            total, most = None if problem else sum(rates.values()), tuple(Counter(rates).most_common(_OPERATORS))
            self._looks.append(HistoryLook(self._began, total, most, threads, problem))
        if time.monotonic() < self._due:
            return

        def limit_files() -> None:
            """Limit the files that a child may write; a report has a few kilobytes."""
            resource.setrlimit(resource.RLIMIT_FSIZE, (32 << 20, 32 << 20))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

        self._due = time.monotonic() + self.period
        self._began = time.time()
        target = ["-p", str(self._pid), "--json"]
        top = [*target, "dispatch-top", "--interval", "1", "--limit", "200"]  # counts dispatches for a second
        for words, name in ((top, "top.json"), ([*target, "--no-stop", "all-threads"], "threads.json")):
            self._children.append(start_aside(self._dispatch, words, self._place, name, limit_files))

    def take(self, stem: str) -> tuple[str, list[str]]:
        """Write the history to a file STEM.history.txt: (ending of its name, lines that summarize it). Raises
        TargetError."""
        looks = [look for look in self._looks if look.time >= time.time() - self._span - self.period]
        summary = list(_summary(looks))
        head = f"The last {duration(self._span)} of process {self._pid}, sampled every {duration(self.period)}"
        lines = [f"{head}, without stopping it.", "", *summary, "", "all samples:"]
        for look in looks:
            lines.append(f"{look.clock}  {look.dispatches}")
            for name, state, places in look.threads:
                lines += [f"    {name}, {state}", *(f"        {place}" for place in places)]
        file = f"{stem}.history.txt"
        try:
            self._place.write(file, "".join(f"{line}\n" for line in lines))
            self._place.publish(file)
        except OSError as error:
            raise TargetError(f"the history cannot be saved: {error.strerror}", help="choose another --save") from error
        return "history.txt", summary

    def end(self) -> None:
        """Kill the child processes, and delete the temporary files."""
        end_processes(self._children, 5.0)
        for child in self._children:
            os.waitpid(child, 0)
        self._children = []
        self._place.close()


def _rates(data: bytes) -> tuple[dict[str, float], str]:
    """(operator → calls a second, the reason if they are unknown or "") in a JSON report of dispatch-top."""
    try:
        report = json_report.parse(data, "the report on its operators", TopSection)
    except GdbextError:
        return {}, "it wrote no report"
    top = report.find_section(TopSection)
    if not top:
        return {}, report.problem or "it wrote no report"
    rates: dict[str, float] = {}
    for row in top.rows:
        op, event = row.subject.op, row.subject.event
        if op and event and event.startswith("call"):
            rates[op] = rates.get(op, 0.0) + row.rate
    return rates, ""


def _threads(data: bytes) -> tuple[tuple[str, str, tuple[str, ...]], ...]:
    """(name, state, places) of the threads in a JSON report that are not idle, the main one first."""
    try:
        report = json_report.parse(data, "the report on its threads")
    except GdbextError:
        return ()
    threads: list[tuple[str, str, tuple[str, ...]]] = []
    for thread in [thread for thread in report.threads if thread.state is not RunState.IDLE][:_THREADS]:
        places = [cut(frame.place, _WIDTH) for frame in thread.python_frames if frame.file and frame.is_users]
        name = f"{thread.python_name or thread.name or 'thread'} (tid {thread.tid})"
        state = thread.state.value + (f", {thread.wait.kind.value}" if thread.wait else "")
        threads.append((cut(name, _WIDTH), state, tuple(places[:_FRAMES])))
    return tuple(threads)


def _is_alike(left: HistoryLook, right: HistoryLook) -> bool:
    """True if the process did the same in both samples: it called the same operators about as often; or called none,
    and its first thread was in the same function."""
    if left.total and right.total:
        shares = [{op: rate / look.total for op, rate in look.rates if look.total} for look in (left, right)]
        # It is a change if an operator has a fifth of all calls in one sample, and less than a twentieth in the other.
        major = {op for share in shares for op, part in share.items() if part >= 0.2}
        is_same = all(share.get(op, 0) >= 0.05 for share in shares for op in major)
        return is_same and 0.5 <= left.total / right.total <= 2
    functions = {look.current_place.partition(":")[0] + look.current_place.rpartition("(")[2] for look in (left, right)}
    return left.total == right.total and len(functions) == 1


def _summary(looks: Sequence[HistoryLook]) -> Iterator[str]:
    """Two lines for each stretch of time in which the process did the same."""
    if not looks:
        yield "there is no sample yet"
    stretches: list[list[HistoryLook]] = []
    for look in looks:
        if stretches and _is_alike(stretches[-1][-1], look):
            stretches[-1].append(look)
        else:
            stretches.append([look])
    for stretch in stretches:
        is_long = len(stretch) > 1
        until = f" to {stretch[-1].clock}" if is_long else f"{'':12}"
        yield f"{stretch[0].clock}{until}  {stretch[len(stretch) // 2].dispatches}"
        places = Counter(look.current_place for look in stretch if look.current_place).most_common(2)
        if places:
            texts = (f"{place} ({counted(times, 'time')})" if is_long else place for place, times in places)
            thread = next(look.threads[0][0] for look in stretch if look.threads)
            yield f"{'':22}{thread}: {', '.join(texts)}"
