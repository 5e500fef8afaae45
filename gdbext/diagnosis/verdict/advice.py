"""Advice what to try next, for each kind of verdict, in words and commands that fit this process."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from gdbext.diagnosis.report.finding import Finding, FindingKind, ProcessStop
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.recursion import repeating
from gdbext.diagnosis.verdict.sentences import listed
from gdbext.engine.record import Record
from gdbext.engine.targets.system.peer import ChildProcess, Peer, PeerKind
from gdbext.engine.terminal import IN_A_DEBUGGER, PROGRAM, CommandLine
from gdbext.torch.stack import DispatchFrame


class Suggestion(Record):
    """A command that tells more: what it shows, and the command itself, as a debugger takes it."""

    shows: str
    command: str
    pid: int | None = None
    """Another process that it is about; None for the one that was looked at."""
    shell: str = ""
    """A command of the shell's in place of one of ours, which changes the process."""
    option: str = ""
    """The option of dispatch-diagnose that the command recommends."""

    def needs_process(self) -> bool:
        """It is for processes as they run: a core or a recording is of what is gone, and perhaps of elsewhere."""
        return self.pid is not None or bool(self.shell) or self.option == CHILDREN

    def text(self, called: CommandLine) -> str:
        """One line that ends with the words to paste."""
        if self.shell:
            return f"{self.shows}: {self.shell}"
        on_other = f"-p {self.pid} {self.command}".rstrip()
        words = called.command(self.command) if self.pid is None else called.outside(on_other)
        return f"{self.shows}: {words}"


CHILDREN, SAMPLES = "--children", "--samples"
_CHILDREN = Suggestion("What each of its child processes does", "dispatch-diagnose --children", option=CHILDREN)
_SAMPLES = Suggestion(
    "Stuck or only slow? Look more than once", "dispatch-diagnose --samples 5 --interval 1", option=SAMPLES
)

_SAVES = {"gdb": "generate-core-file core.{0}", "lldb": f"{PROGRAM} -p {{0}} --record hang.{{0}}.rec"}
"""The command that keeps what is there while a debugger has the process: gcore would be a second tracer of it. LLDB on
Linux writes no ELF cores (16: none, 22: minidumps)."""


def advice(
    finding: Finding,
    threads: Sequence[ThreadReport],
    pid: int,
    is_core: bool,
    called: CommandLine = IN_A_DEBUGGER,
    debugger: str = "",
    stop: ProcessStop | None = None,
    used: Collection[str] = (),
) -> tuple[str, ...]:
    """Lines of advice, the most useful first; ``debugger``: the one that has the process; ``stop``: what has stopped
    it as a whole; ``used``: options of dispatch-diagnose that are in use, which are not recommended."""
    known = {thread.tid: thread for thread in threads}
    involved = [known[tid] for tid in finding.threads if tid in known]
    lines = [*_about_ranks(involved, pid, called), *_ADVISERS[finding.kind](finding, involved)]
    inside = [thread for thread in involved if thread.dispatch]
    if finding.step is not None and finding.step.op is not None and inside:
        lines.append(Suggestion("The whole path through the dispatcher", f"dispatch-bt --thread {inside[0].tid}"))
    lines += _about_backward(involved)
    traits = finding.kind.traits
    can_run = not is_core and called.may_run
    if can_run and not traits.is_hang and inside and called.source and os.geteuid() == 0:
        lines.append(Suggestion("What it dispatches, and how often", "dispatch-top"))
    if can_run and traits.may_be_slow:
        lines.append(_SAMPLES)
    if can_run and traits.is_hang and finding.kind is not FindingKind.KERNEL_WAIT:  # gcore would wait as well
        lines += _keeping(pid, stop, "" if called.source else debugger)
    return tuple(
        line if isinstance(line, str) else line.text(called)
        for line in lines
        if isinstance(line, str) or (line.option not in used and (can_run or not line.needs_process()))
    )


def _keeping(pid: int, stop: ProcessStop | None, debugger: str) -> Iterator[str | Suggestion]:
    """Suggest how a core is kept: nobody can attach where another one traces, nor stop what is in a frozen group."""
    shows = "Keep the evidence before you kill it"
    if stop is None or not (stop.tracer or stop.group):
        yield Suggestion(shows, "", shell=_SAVES.get(debugger, "gcore {}").format(pid))
    elif stop.tracer:
        saves = next((words for name, words in _SAVES.items() if f"({name}" in stop.tracer), "gcore {}, once it let go")
        yield f"{shows}, in process {stop.tracer}: {saves.format(pid)}"


def of_parent(finding: Finding, called: CommandLine, used: Collection[str] = ()) -> tuple[str, ...]:
    """Advice for a process that has children and nothing to do itself: what hangs may be one of them."""
    if finding.kind is not FindingKind.IDLE or not called.may_run or _CHILDREN.option in used:
        return ()
    return (_CHILDREN.text(called),)


def _about_ranks(involved: Sequence[ThreadReport], pid: int, called: CommandLine) -> Iterator[str | Suggestion]:
    """One rank of a job never tells why the others do not come."""
    if called.may_run and any(thread.wait is not None and thread.wait.collective for thread in involved):
        yield of_ranks(pid, called)


def of_ranks(pid: int, called: CommandLine) -> str:
    """Advice for one process of a job of many."""
    return f"All ranks of the job, and which of them the others wait for: {called.outside(f'ranks -p {pid}')}"


def _about_backward(involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    """A node of a backward pass is explained by the forward pass that made it."""
    thread = next((each for each in involved if each.backward), None)
    if thread is not None:
        yield Suggestion(
            "The node that runs in backward, and its forward line", f"dispatch-autograd --thread {thread.tid}"
        )


def _deadlock(finding: Finding, _involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    kinds = [edge.wait.kind for edge in finding.cycle]
    with_gil = WaitKind.GIL in kinds
    if with_gil and any(kind.traits.is_native for kind in kinds):
        yield (
            "Never ask for a native lock while holding the GIL: release it first (py::gil_scoped_release, "
            "Py_BEGIN_ALLOW_THREADS) around the code that locks."
        )
    yield from _of_kinds(kind for kind in kinds if kind.traits.is_lock)
    locks = [kind for kind in kinds if kind.traits.is_lock]
    if not with_gil and (len(locks) > 1 or not kinds):  # a cycle of tasks has no edges
        together = ", or together (std::scoped_lock)" if locks and all(kind.traits.is_native for kind in locks) else ""
        yield f"Take these locks in one order everywhere{together}."
    yield from _of_kinds(kind for kind in kinds if not kind.traits.is_lock)


def _of_kinds(kinds: Iterator[WaitKind]) -> Iterator[str]:
    texts = (kind.traits.advice_in_deadlock for kind in kinds)
    yield from dict.fromkeys(text for text in texts if text)


def _self_deadlock(finding: Finding, _involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    if finding.wait is not None and finding.wait.self_wait is not None:
        yield finding.wait.self_wait.advice
        return
    yield "The lock is not recursive: do not call back into code that takes it, or use a recursive mutex (RLock)."


_WITHOUT_FORK = (
    "Start processes with 'spawn' or 'forkserver' (multiprocessing.set_start_method), or fork before threads."
)


def of_cause(kinds: Iterable[FindingKind | None]) -> tuple[str, ...]:
    """Advice for a process that waits for a child whose verdict is of one of these kinds: what a fork has broken is
    mended where the fork is."""
    if any(kind in (FindingKind.ORPHANED_LOCK, FindingKind.MISSING_WORKERS) for kind in kinds):
        return (f"In this process, which made the child: {_WITHOUT_FORK}",)
    return ()


def _orphaned(finding: Finding, _involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    yield _WITHOUT_FORK
    if finding.wait is not None and finding.wait.kind is WaitKind.PYTHON_LOCK:
        yield "Where the code is yours: os.register_at_fork(after_in_child=…) gives the child a new lock."
    else:
        yield "Where the code is yours: pthread_atfork handlers that take the lock before fork and release it after."


def _missing_workers(finding: Finding, _involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    yield "Start worker processes with 'spawn' instead of 'fork'; thread pools do not survive fork."
    lost = finding.wait.lost if finding.wait is not None else None
    if lost is not None:
        yield lost.loss.advice
    missing = finding.wait.missing_workers if finding.wait is not None else None
    if missing is not None and missing.pool.advice_when_missing:
        yield missing.pool.advice_when_missing


def _runaway(_finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    thread = next((each for each in involved if each.dispatch), None)
    if thread is None:
        return
    group, _ = repeating(thread.dispatch)
    yield _out_of(group or thread.dispatch[:1])
    step = thread.dispatch[0]
    if step.op is not None and step.keyset is not None:
        yield Suggestion("See where that keyset leads", f"dispatch-lookup {step.qualified} {step.keyset.bits:#x}")


_ABOVE_BACKENDS = (
    "Autograd",
    "Autocast",
    "ADInplaceOrView",
    "Python",
    "Functionalize",
    "FuncTorch",
    "Batched",
    "Conjugate",
    "Negative",
    "ZeroTensor",
    "BackendSelect",
    "Tracer",
    "PreDispatch",
    "Vmap",
    "Named",
    "TESTING_ONLY",
    "DeferredInit",
    "Fake",
)
"""Beginnings of keys whose kernels can go on below their own key (c10/core/DispatchKey.h)."""


def _is_backend(key: str | None) -> bool:
    """The key is the last one that a call comes to."""
    return key is not None and not key.startswith(_ABOVE_BACKENDS)


def _out_of(group: Sequence[DispatchFrame]) -> str:
    """The advice that breaks the circle, by what goes round in it."""
    if all(step.event is not None and step.event.is_redispatch for step in group):
        return (
            "The kernel must redispatch below its own key: redispatch(ks & c10::after_autograd_keyset), or guard the "
            "call with at::AutoDispatchBelowAutograd / ExcludeDispatchKeyGuard (Python: "
            "torch._C._AutoDispatchBelowAutograd)."
        )
    called = listed(sorted({step.qualified for step in group if step.op is not None})) or "the operator"
    if any(_is_backend(step.key) for step in group):
        return (
            f"The kernel of a backend calls {called} anew and comes back to itself: there is no key below its own, so "
            "let it call another operator, or the function that computes the result."
        )
    if any(step.kernel is not None and " at " in step.kernel.function for step in group):
        return (
            f"A Python kernel calls {called} anew and comes back to itself: let it call another operator, or go on "
            "below its own key: with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY)), or "
            "op.redispatch(KEYS, …)."
        )
    return (
        f"A kernel calls {called} anew, with the same arguments, and comes back to itself: let it call the function "
        "that computes the result, or another operator; or exclude its key with c10::impl::ExcludeDispatchKeyGuard."
    )


def _crash(finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    if involved:
        yield Suggestion("All native frames of the crash", f"dispatch-bt --native --thread {involved[0].tid}")
    yield from finding.cures
    if not finding.cures and finding.step is not None and finding.step.op is not None:
        yield Suggestion("What else is registered for the operator", f"dispatch-op {finding.step.op}")


def _blocked(finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    last = involved[-1] if involved else None
    if last is None:
        return
    yield from finding.cures
    if last.loop is not None and (last.loop.is_stuck or finding.cures):
        yield Suggestion("What the tasks of the event loop wait for", "all-threads --tasks")
        return
    lost = finding.wait.lost if finding.wait is not None else None
    if lost is not None:
        yield lost.loss.advice
    elif last.wait is not None and last.wait.peer is not None and last.wait.peer.kind is PeerKind.FILE_LOCK:
        yield from _about_file_lock(last.wait.peer)
    elif last.wait is not None and last.wait.kind.traits.advice_when_blocked:
        yield last.wait.kind.traits.advice_when_blocked
    line = last.user_line or last.python_line
    if line:
        yield f"The Python line that waits: {line}"


def _stopped(finding: Finding, _involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    stop = finding.stop
    if stop is not None and stop.group:
        yield (
            f"Thaw the group: echo THAWED > /sys/fs/cgroup/freezer{stop.group}/freezer.state (v1), or "
            f"echo 0 > /sys/fs/cgroup{stop.group}/cgroup.freeze (v2); docker unpause for a container."
        )
    elif stop is not None and stop.tracer:
        number = stop.tracer.partition(" ")[0]
        yield f"Let it go on there. The end of the tracer (kill {number}) does that, too, or ends it, if asked to."
    elif stop is not None and stop.signal in ("SIGTTIN", "SIGTTOU"):
        yield "Bring it to the foreground (fg), or start it without the terminal: < /dev/null, nohup, setsid."
    yield Suggestion("What it did before", "dispatch-bt")
    yield Suggestion("Whether it hangs as well, once it goes on", "dispatch-diagnose")


def _slowed(finding: Finding, _involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    yield from finding.cures


def _kernel_wait(finding: Finding, _involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    wait = finding.wait
    if wait is None:
        return
    if wait.peer is not None and wait.peer.kind in _AT_THE_OTHER_END:
        yield from _AT_THE_OTHER_END[wait.peer.kind](wait.peer)
    elif wait.children:
        yield from _about_children(wait)
    if wait.kernel is not None and wait.kernel.is_out_of_memory:
        yield "Raise that group's memory.limit_in_bytes, or let the kernel kill one of it: echo 0 > memory.oom_control."
    elif wait.kind is WaitKind.PAGE:
        yield wait.kind.traits.advice_when_blocked
    elif wait.kind is WaitKind.IO:
        yield "Look at the device, or at the server of that file system: the kernel waits for its answer (dmesg)."
    if wait.kernel is not None and not wait.kernel.stack and os.geteuid() != 0:
        yield "As root, this report names the kernel's own stack."


def _external(finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    wait = finding.wait
    if wait is not None and wait.question:
        yield (
            "Nobody may see that question: give the answer beforehand (an argument, an option, a variable of the "
            "environment), take breakpoint() out (PYTHONBREAKPOINT=0), or start the program on a terminal."
        )
    if wait is not None and wait.collective is not None and wait.collective.size is not None:
        yield "Do all ranks run, with the same MASTER_ADDR and MASTER_PORT, and do they reach it (a firewall)?"
    elif wait is not None and wait.kind.traits.advice_when_outside:
        if wait.collective is not None and wait.collective.on_device:
            yield from WaitKind.COLLECTIVE.traits.advice_when_outside
        yield from wait.kind.traits.advice_when_outside
    elif wait is not None and wait.kind is WaitKind.CHILD_PROCESS:
        yield from _about_children(wait)
    elif wait is not None and wait.peer is not None and wait.peer.kind in _AT_THE_OTHER_END:
        yield from _AT_THE_OTHER_END[wait.peer.kind](wait.peer)
    elif wait is not None and wait.refused is not None:
        yield "See whether the other end runs, whether that is its address and port, and what is between (a firewall)."
    elif wait is not None and wait.meets_others:
        yield "Start the other nodes with the same --rdzv-id and --rdzv-endpoint; see whether they reach that address."
    elif wait is not None and wait.looks_outside:
        yield "Who should make or remove that file may be gone: a lock file that a killed process left behind stays."
        yield "See whether any process still works on it (fuser, lsof, ps); if none does, remove the file."
    elif wait is not None and wait.children:
        yield from _about_children(wait)
    elif wait is not None and wait.external and wait.kind.traits.needs_thread:
        yield "Other processes share it: one that is killed while it has it (terminate()) never gives it back."
    elif any(thread.loop is not None and thread.loop.tasks for thread in involved):
        yield Suggestion("What the tasks of the event loop wait for", "all-threads --tasks")
    else:
        yield "Look at who is at the other end: it should send, take what is sent, or open it."


def _gil_in_device_call(finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    yield (
        "Release the GIL around the call: py::gil_scoped_release, Py_BEGIN_ALLOW_THREADS, or ctypes.CDLL instead of "
        "PyDLL."
    )
    wait = finding.wait
    if wait is not None and wait.device is not None and wait.device.host_functions:
        yield "A host function (cudaLaunchHostFunc) must take no lock, and so no GIL: let it only set a flag."
    yield from _external(finding, involved)


def _to_continue(pid: int) -> Suggestion:
    return Suggestion(
        "It is stopped (SIGSTOP, Ctrl+Z or a debugger); this lets it go on", "", shell=f"kill -CONT {pid}"
    )


def _at_the_other_end(peer: Peer) -> Iterator[str | Suggestion]:
    for process in peer.processes[:1]:
        yield Suggestion("Look at the process at the other end with the same command", "", process.pid)
        if process.writes_to_us:
            yield "It waits until somebody reads what it writes: do so in another thread (subprocess: communicate())."
        if process.is_stopped:
            yield _to_continue(process.pid)


def _about_socket(peer: Peer) -> Iterator[str | Suggestion]:
    if peer.state == "LISTEN":
        shows = "It is a server's loop: somebody may connect. What its own tasks wait for"
        yield Suggestion(shows, "all-threads --tasks")
        return
    if peer.is_queued:
        yield "Accept that connection in another thread of this process: as long as it waits here nobody does."
        return
    yield from _at_the_other_end(peer)
    if not peer.processes:
        yield f"Look at the peer{f' {peer.address}' if peer.address else ''}: the process there that should send."
    yield "Give the socket a timeout: without one a peer that is silent, or gone, is waited for without end."


def _about_process(peer: Peer) -> Iterator[str | Suggestion]:
    for process in peer.processes[:1]:
        yield Suggestion("Look at that process with the same command", "", process.pid)
        if process.writes_to_us:
            yield "Read what it writes before you wait for its end (communicate())."


def _about_pipe(peer: Peer) -> Iterator[str | Suggestion]:
    yield from _at_the_other_end(peer)
    if peer.own:
        yield "Close this process's own copy of the other end: as long as it is open the pipe never ends."


def _about_file_lock(peer: Peer) -> Iterator[str | Suggestion]:
    for process in peer.processes[:1]:
        yield Suggestion("Look at the process that holds the lock with the same command", "", process.pid)
    yield "The lock is released when that process unlocks or closes the file, or ends."


def _about_children(wait: Wait) -> Iterator[str | Suggestion]:
    child = max(wait.children, key=_explains, default=None)
    if child is not None:
        yield Suggestion("Look at the child process with the same command", "", child.pid)
    if child is None or len(wait.children) > 1:
        yield _CHILDREN
    if wait.kind is WaitKind.CHILD_PROCESS and child is not None and child.writes_to_us:
        yield "Read what it writes before you wait for its end (subprocess: communicate(); multiprocessing: get())."
    if child is not None and child.is_stopped:
        yield _to_continue(child.pid)


def _explains(child: ChildProcess) -> tuple[bool, bool, bool]:
    """The child that tells most about why its parent waits: one that is stopped, then one that waits for the parent,
    then one that does not wait for work, as an idle worker does."""
    return child.is_stopped, child.writes_to_us, child.call not in _CALLS_FOR_WORK and not child.reads_from_us


def _idle(_finding: Finding, _involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    yield Suggestion("If it should be working, and is the right process: what each thread waits for", "all-threads")


def _nothing(_finding: Finding, _involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
    yield from ()


_CALLS_FOR_WORK = frozenset({"read", "poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait"})
_AT_THE_OTHER_END: Mapping[PeerKind, Callable[[Peer], Iterator[str | Suggestion]]] = {
    PeerKind.SOCKET: _about_socket,
    PeerKind.PIPE: _about_pipe,
    PeerKind.PROCESS: _about_process,
    PeerKind.FILE_LOCK: _about_file_lock,
}
_ADVISERS: Mapping[FindingKind, Callable[[Finding, Sequence[ThreadReport]], Iterator[str | Suggestion]]] = {
    FindingKind.CRASH: _crash,
    FindingKind.RUNAWAY_RECURSION: _runaway,
    FindingKind.DEADLOCK: _deadlock,
    FindingKind.SELF_DEADLOCK: _self_deadlock,
    FindingKind.ORPHANED_LOCK: _orphaned,
    FindingKind.MISSING_WORKERS: _missing_workers,
    FindingKind.KERNEL_WAIT: _kernel_wait,
    FindingKind.BLOCKED: _blocked,
    FindingKind.STOPPED: _stopped,
    FindingKind.GIL_IN_DEVICE_CALL: _gil_in_device_call,
    FindingKind.WAITING_EXTERNAL: _external,
    FindingKind.STARVED: _slowed,
    FindingKind.SLOW: _slowed,
    FindingKind.BUSY: _nothing,
    FindingKind.IDLE: _idle,
    FindingKind.NOTE: _nothing,
}
