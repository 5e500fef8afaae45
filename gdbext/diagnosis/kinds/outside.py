"""Waits for what is outside of the process: the kernel, peers, devices, other ranks, child processes, files, input."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence

from gdbext.diagnosis.kinds.blocked import is_stuck, is_unwoken
from gdbext.diagnosis.kinds.other_end import about_children, about_peer, has_known_peer
from gdbext.diagnosis.kinds.verdict_kind import VerdictKind
from gdbext.diagnosis.report.finding import Finding, Suggestion
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.chains import at_one_line, bystanders, external_waits, leads_outside
from gdbext.diagnosis.verdict.clauses import crowd, listed, loop_clause, meanwhile, wait_chain, who_waits
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph
from gdbext.engine.targets.base_target import KernelSide

_CROWD = 4
"""Threads that wait at one line, from which on they are what a server has no more of, rather than work on its way."""


class WaitingExternal(VerdictKind):
    """Another process, rank or device has to act."""

    value = "waiting-external"
    words = "waits"
    what_to_do = "the other process is named: run the command on it"
    may_be_slow = movement_refutes_it = is_quiet = True

    def heading(self, finding: Finding) -> str:
        if not finding.wait:
            return self.words
        if finding.wait.polls:
            return "polls"
        return "the tasks of an event loop wait" if finding.in_loop else finding.wait.kind.traits.heading or self.words

    def find(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        yield from self._of_main(seen, graph)
        for thread, wait in external_waits(seen):
            if _want_gil_in_device_call(thread, wait, seen):
                continue  # a finding of its own
            if thread.tid == seen.pid and wait.kernel and wait.kernel.stands:
                continue  # the stronger finding says it
            if is_stuck(thread, seen) or is_unwoken(thread):
                continue  # so do those
            serves = thread.loop is not None or (wait.peer is not None and wait.peer.is_listening)
            crowds = at_one_line(seen.threads) if serves and wait.kind is WaitKind.IO else []
            group = next((each for each in crowds if len(each) >= _CROWD), [])
            text = f"{who_waits(thread, wait)}{loop_clause(thread)}."
            text = f"{crowd(group)} {text}" if group else text
            tids = (*(each.tid for each in group), thread.tid)
            groups = bystanders(seen, tids) if not group and thread is seen.main and wait.kind is WaitKind.IO else []
            text += meanwhile(groups, graph.threads)
            tids = (*tids, *(group[0].tid for group in groups))
            in_loop = thread.loop is not None and thread.loop.awaits_nothing_outside and wait.kind is WaitKind.IO
            yield Finding(self, text, tids, wait.evidence, thread.innermost, wait=wait, in_loop=in_loop)

    def _of_main(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """The main thread waits for another process, though only a thread of this one, or a loop, stands between
        them."""
        main = seen.main
        if not main or not main.wait or main.state is RunState.IDLE:
            return
        chain = graph.wait_chain(main.tid)
        end = graph.threads[chain.end].wait
        if not end or not leads_outside(end) or not (chain.edges or end.looks_for or end.refused):
            return
        threads = [graph.threads[tid] for tid in chain.tids]
        evidence = tuple(text for thread in threads if thread.wait for text in thread.wait.evidence)
        step = next((thread.innermost for thread in threads if thread.dispatch), None)
        yield Finding(self, f"{wait_chain(chain, graph)}.", chain.tids, evidence, step, wait=end)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        wait = finding.wait
        if wait and wait.question:
            yield (
                "Nobody may see that question: give the answer beforehand (an argument, an option, a variable of the "
                "environment), take breakpoint() out (PYTHONBREAKPOINT=0), or start the program on a terminal."
            )
        about = next((about for fits, about in _ABOUT if wait and fits(wait)), None)
        if wait and about:
            yield from about(wait)
        elif any(thread.loop and thread.loop.tasks for thread in involved):
            yield Suggestion("What the tasks of the event loop wait for", "all-threads --tasks")
        else:
            yield "Look at who is at the other end: it should send, take what is sent, or open it."


def _about_wait_kind(wait: Wait) -> Iterator[str]:
    if wait.collective and wait.collective.on_device:
        yield from WaitKind.COLLECTIVE.traits.advice_when_outside
    yield from wait.kind.traits.advice_when_outside


def _says(*texts: str) -> Callable[[Wait], Iterable[str]]:
    return lambda _: texts


_ABOUT: tuple[tuple[Callable[[Wait], object], Callable[[Wait], Iterable[str | Suggestion]]], ...] = (
    (
        lambda wait: wait.collective is not None and wait.collective.size is not None,
        _says("Do all ranks run, with the same MASTER_ADDR and MASTER_PORT, and do they reach it (a firewall)?"),
    ),
    (lambda wait: wait.kind.traits.advice_when_outside, _about_wait_kind),
    (lambda wait: wait.kind is WaitKind.CHILD_PROCESS, about_children),
    (has_known_peer, about_peer),
    (
        lambda wait: wait.refused is not None,
        _says(
            "See whether the other end runs, whether that is its address and port, and what is between (a firewall)."
        ),
    ),
    (
        lambda wait: wait.meets_others,
        _says(
            "Start the other nodes with the same --rdzv-id and --rdzv-endpoint; see whether they reach that address."
        ),
    ),
    (
        lambda wait: wait.looks_outside,
        _says(
            "Who should make or remove that file may be gone: a lock file that a killed process left behind stays.",
            "See whether any process still works on it (fuser, lsof, ps); if none does, remove the file.",
        ),
    ),
    (lambda wait: wait.children, about_children),
    (
        lambda wait: wait.external and wait.kind.traits.needs_thread,
        _says("Other processes share it: one that is killed while it has it (terminate()) never gives it back."),
    ),
)
"""What a wait is for, and the advice about that; the first one that fits counts."""


class GilInDeviceCall(VerdictKind):
    """A thread waits for a device and keeps the GIL, which others want."""

    value = "gil-in-device-call"
    words = "holds the GIL while it waits for the device"
    what_to_do = "the call, its stream and the line are named: release the GIL around it"
    may_be_slow = movement_refutes_it = True

    def find(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        for thread, wait in seen.waits:
            waiters = _want_gil_in_device_call(thread, wait, seen)
            if waiters:
                tids = (thread.tid, *(each.tid for each in waiters))
                evidence = (*wait.evidence, "the interpreter records it as the GIL's holder")
                yield Finding(self, self.sentence(thread, wait, waiters), tids, evidence, thread.innermost, wait=wait)

    def sentence(self, thread: ThreadReport, wait: Wait, waiters: Sequence[ThreadReport]) -> str:
        """``… waits for the device (cudaStreamSynchronize …) with the GIL in hand, for which 2 threads wait: …``"""
        others = f"{len(waiters)} threads wait" if len(waiters) > 1 else f"{waiters[0].label} waits"
        callbacks = wait.device.host_functions if wait.device else ()
        called = [each.label for each in waiters if each.tid in callbacks]
        held = f"with the GIL in hand, for which {others}: no Python code runs until it is over"
        text = f"{who_waits(thread, wait)} {held}"
        if called:
            text += (
                f"; {listed(called)} runs a host function that the program launched: if the device waits for that, "
                "nobody will ever go on"
            )
        return f"{text}."

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        yield (
            "Release the GIL around the call: py::gil_scoped_release, Py_BEGIN_ALLOW_THREADS, or ctypes.CDLL instead "
            "of PyDLL."
        )
        wait = finding.wait
        if wait and wait.device and wait.device.host_functions:
            yield "A host function (cudaLaunchHostFunc) must take no lock, and so no GIL: let it only set a flag."
        yield from WAITING_EXTERNAL.advice(finding, involved)


def _want_gil_in_device_call(holder: ThreadReport, wait: Wait, seen: Observations) -> list[ThreadReport]:
    """The threads that wait for the GIL, where ``holder`` has it while it waits for a device."""
    if not wait.device or not wait.device.holds_gil:
        return []
    wanting = [(each, other) for each, other in seen.waits if other.kind is WaitKind.GIL and not other.being_released]
    return [each for each, other in wanting if holder.tid in other.owner_tids]


class KernelWait(VerdictKind):
    """A thread sleeps in the kernel: a page that does not come, a file system that does not answer."""

    value = "kernel-wait"
    words = "waits in the kernel"
    what_to_do = "the file, the file system and its server are named"
    may_be_slow = movement_refutes_it = True
    can_be_dumped = False

    def find(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """Threads that others need, or that the user came for, and that sleep in the kernel for no lock of the
        process."""
        waiters = graph.waiters()
        for thread, wait in seen.waits:
            if not wait.kernel or not wait.kernel.stands:
                continue
            wanting = [graph.threads[tid] for tid in waiters.get(thread.tid, ())]
            if wanting or thread.dispatch or thread.tid == seen.pid:
                tids = (thread.tid, *(each.tid for each in wanting))
                text = self.sentence(thread, wait, wait.kernel, wanting)
                yield Finding(self, text, tids, wait.evidence, thread.innermost, wait=wait)

    def is_refuted(self, finding: Finding, seen: Observations, graph: WaitGraph) -> bool:
        return seen.has_run(finding.threads[0])  # the one that sleeps there

    def sentence(self, thread: ThreadReport, wait: Wait, side: KernelSide, waiters: Sequence[ThreadReport]) -> str:
        """``MainThread (tid 1) waits for a page …: it has slept in the kernel (handle_userfault) for 34 s.``"""
        how = "uninterruptibly " if side.is_uninterruptible else ""
        where = f" ({side.channel})" if side.channel else ""
        since = f" for {_span(side.seconds)}" if side.seconds is not None else ""
        text = f"{who_waits(thread, wait)}: it has slept {how}in the kernel{where}{since}"
        if waiters:
            wants = listed([f"{each.label} {each.wait.phrase if each.wait else ''}" for each in waiters])
            text += f"; meanwhile {wants}"
        return f"{text}."

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        wait = finding.wait
        if not wait:
            return
        if has_known_peer(wait):
            yield from about_peer(wait)
        elif wait.children:
            yield from about_children(wait)
        if wait.kernel and wait.kernel.is_out_of_memory:
            yield (
                "Raise that group's memory.limit_in_bytes, or let the kernel kill one of it: echo 0 > "
                "memory.oom_control."
            )
        elif wait.kind is WaitKind.PAGE:
            yield wait.kind.traits.advice_when_blocked
        elif wait.kind is WaitKind.IO:
            yield "Look at the device, or at the server of that file system: the kernel waits for its answer (dmesg)."
        if wait.kernel and not wait.kernel.stack and os.geteuid() != 0:
            yield "As root, this report names the kernel's own stack."


def _span(seconds: float) -> str:
    """``34 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


KERNEL_WAIT = KernelWait()
WAITING_EXTERNAL = WaitingExternal()
GIL_IN_DEVICE_CALL = GilInDeviceCall()
