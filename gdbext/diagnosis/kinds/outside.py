"""Waits for what is outside of the process: the kernel, peers, devices, other ranks, child processes, files, input."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from gdbext.diagnosis.kinds.blocked import is_stuck, is_unwoken
from gdbext.diagnosis.kinds.verdict_kind import VerdictKind
from gdbext.diagnosis.report.finding import Finding
from gdbext.diagnosis.report.suggestion import Suggestion
from gdbext.diagnosis.report.thread_report import RunState, ThreadReport
from gdbext.diagnosis.report.wait import Wait
from gdbext.diagnosis.report.wait_kind import WaitKind
from gdbext.diagnosis.verdict.chains import at_one_line, bystanders, external_waits
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
            serves = thread.loop is not None or (wait.detail.peer is not None and wait.detail.peer.is_listening)
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
        if not end or not end.leads_outside:
            return
        if not (chain.edges or end.detail.looks_for or end.detail.handling.refused):
            return
        threads = [graph.threads[tid] for tid in chain.tids]
        evidence = tuple(text for thread in threads if thread.wait for text in thread.wait.evidence)
        step = next((thread.innermost for thread in threads if thread.dispatch), None)
        yield Finding(self, f"{wait_chain(chain, graph)}.", chain.tids, evidence, step, wait=end)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        wait = finding.wait
        if wait and wait.detail.about_question:
            yield wait.detail.about_question
        told = wait.advice_outside if wait else None
        if told:
            yield from told
        elif any(thread.loop and thread.loop.tasks for thread in involved):
            yield Suggestion("What the tasks of the event loop wait for", "all-threads --tasks")
        else:
            yield "Look at who is at the other end: it should send, take what is sent, or open it."


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
        """``… waits for the device (cudaStreamSynchronize …) while holding the GIL, which 2 threads want: …``"""
        others = f"{len(waiters)} threads want" if len(waiters) > 1 else f"{waiters[0].label} wants"
        callbacks = wait.detail.device.host_functions if wait.detail.device else ()
        called = [each.label for each in waiters if each.tid in callbacks]
        held = f"while holding the GIL, which {others}: no Python code runs until the call returns"
        text = f"{who_waits(thread, wait)} {held}"
        if called:
            text += (
                f"; {listed(called)} runs a host function that the program launched: if the device waits for that, "
                "this is a deadlock"
            )
        return f"{text}."

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        yield (
            "Release the GIL around the call: py::gil_scoped_release, Py_BEGIN_ALLOW_THREADS, or ctypes.CDLL instead "
            "of PyDLL."
        )
        wait = finding.wait
        if wait and wait.detail.device and wait.detail.device.host_functions:
            yield "A host function (cudaLaunchHostFunc) must take no lock, and so no GIL: let it only set a flag."
        yield from WAITING_EXTERNAL.advice(finding, involved)


def _want_gil_in_device_call(holder: ThreadReport, wait: Wait, seen: Observations) -> list[ThreadReport]:
    """The threads that wait for the GIL, where ``holder`` has it while it waits for a device."""
    if not wait.detail.device or not wait.detail.device.holds_gil:
        return []
    wanting = [(each, other) for each, other in seen.waits if other.kind is WaitKind.GIL and not other.being_released]
    return [each for each, other in wanting if holder.tid in other.owner_tids]


class KernelWait(VerdictKind):
    """A thread sleeps in the kernel: a page that does not come, a file system that does not answer."""

    value = "kernel-wait"
    words = "blocked in the Linux kernel"
    what_to_do = "the file, the file system and its server are named"
    may_be_slow = movement_refutes_it = True
    can_be_dumped = False

    def find(self, seen: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """Threads that others need, or that the user came for, and that sleep in the kernel for no lock of the
        process."""
        waiters = graph.waiters
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
        yield from wait.detail.about_other_end(wait.kind) or ()
        is_out_of_memory = wait.kernel is not None and wait.kernel.is_out_of_memory
        in_kernel = _RAISE_LIMIT if is_out_of_memory else wait.kind.traits.advice_in_kernel
        if in_kernel:
            yield in_kernel
        if wait.kernel and not wait.kernel.stack and os.geteuid() != 0:
            yield "As root, this report names the kernel's own stack."


_RAISE_LIMIT = (
    "Raise that group's memory.limit_in_bytes, or let the kernel kill one of it: echo 0 > memory.oom_control."
)


def _span(seconds: float) -> str:
    """``34 s``, ``12 min``, ``3.5 h``."""
    if seconds < 120:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


KERNEL_WAIT = KernelWait()
WAITING_EXTERNAL = WaitingExternal()
GIL_IN_DEVICE_CALL = GilInDeviceCall()
