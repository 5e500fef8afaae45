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
from gdbext.diagnosis.verdict.clauses import (
    explained_chain,
    group_sentence,
    listed,
    loop_clause,
    meanwhile_clause,
    waiting_clause,
)
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph, bystanders, external_waits, groups_by_line


class WaitingExternal(VerdictKind):
    """Another process, rank or device has to act."""

    value = "waiting-external"
    words = "waits"
    what_to_do = "the other process is named: run the command on it"
    may_be_slow = movement_refutes_it = is_quiet = True

    def heading(self, finding: Finding) -> str:
        """``polls``, or the words of the wait's kind: ``waits for other ranks``."""
        if not finding.wait:
            return self.words
        if finding.wait.polls:
            return "polls"
        return "the tasks of an event loop wait" if finding.in_loop else finding.wait.kind.traits.heading or self.words

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """Waits for something outside: the one at the end of the main thread's chain, then each thread's own."""
        main = facts.main
        if main and main.wait and main.state is not RunState.IDLE:
            # The main thread waits for another process, though a thread of this one, or a loop, is between them.
            chain = graph.explained_chain(main.tid)
            end = graph.threads[chain.end].wait
            if end and end.leads_outside and (chain.edges or end.detail.looks_for or end.detail.handling.refused):
                threads = [graph.threads[tid] for tid in chain.tids]
                evidence = tuple(text for thread in threads if thread.wait for text in thread.wait.evidence)
                step = next((thread.innermost for thread in threads if thread.dispatch), None)
                yield Finding(self, f"{explained_chain(chain, graph)}.", chain.tids, evidence, step, wait=end)
        for thread, wait in external_waits(facts):
            if _waiters_for_gil(thread, wait, facts):
                continue  # GIL_IN_DEVICE_CALL finds it
            if thread.tid == facts.pid and wait.kernel and wait.kernel.has_slept_long:
                continue  # KERNEL_WAIT finds it
            if is_stuck(thread, facts) or is_unwoken(thread):
                continue  # BLOCKED finds it
            is_io = wait.kind is WaitKind.IO
            serves = thread.loop is not None or (wait.detail.peer is not None and wait.detail.peer.is_listening)
            # Four threads at one line are a resource that the server has run out of, rather than normal work.
            lines = groups_by_line(facts.threads) if serves and is_io else []
            group = next((line for line in lines if len(line) >= 4), [])
            groups = []
            text = f"{waiting_clause(thread, wait)}{loop_clause(thread)}."
            tids: tuple[int, ...] = (thread.tid,)
            if group:
                text = f"{group_sentence(group)} {text}"
                tids = (*(member.tid for member in group), thread.tid)
            elif thread is facts.main and is_io:
                groups = bystanders(facts, tids)
            text += meanwhile_clause(groups, graph.threads)
            tids = (*tids, *(group[0].tid for group in groups))
            in_loop = thread.loop is not None and thread.loop.awaits_nothing_outside and is_io
            yield Finding(self, text, tids, wait.evidence, thread.innermost, wait=wait, in_loop=in_loop)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        wait = finding.wait
        if wait and wait.detail.about_question:
            yield wait.detail.about_question
        if wait and wait.advice_outside:
            yield from wait.advice_outside
        elif any(thread.loop and thread.loop.tasks for thread in involved):
            yield Suggestion("What the tasks of the event loop wait for", "all-threads --tasks")
        else:
            yield "Check the process at the other end: it must open the pipe, socket or file, and write or read."


class GilInDeviceCall(VerdictKind):
    """A thread holds the GIL, which others want, while it waits for a device."""

    value = "gil-in-device-call"
    words = "holds the GIL while it waits for the device"
    what_to_do = "the call, its stream and the line are named: release the GIL around it"
    may_be_slow = movement_refutes_it = True

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """Waits for a device by the GIL's holder while other threads want the GIL."""
        for thread, wait in facts.waits:
            waiters = _waiters_for_gil(thread, wait, facts)
            if not waiters:
                continue
            others = f"{len(waiters)} threads want" if len(waiters) > 1 else f"{waiters[0].label} wants"
            text = f"{waiting_clause(thread, wait)} while holding the GIL, which {others}"
            text += ": no Python code runs until the call returns"
            callbacks = wait.detail.device.host_functions if wait.detail.device else ()
            called = [waiter.label for waiter in waiters if waiter.tid in callbacks]
            if called:
                text += (
                    f"; {listed(called)} runs a host function that the program launched: if the device waits for that, "
                    "this is a deadlock"
                )
            tids = (thread.tid, *(waiter.tid for waiter in waiters))
            evidence = (*wait.evidence, "the interpreter records it as the GIL's holder")
            yield Finding(self, f"{text}.", tids, evidence, thread.innermost, wait=wait)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        yield (
            "Release the GIL around the call: py::gil_scoped_release, Py_BEGIN_ALLOW_THREADS, or ctypes.CDLL instead "
            "of PyDLL."
        )
        wait = finding.wait
        if wait and wait.detail.device and wait.detail.device.host_functions:
            yield "A host function (cudaLaunchHostFunc) must not take a lock, not even the GIL: let it only set a flag."
        yield from WAITING_EXTERNAL.advice(finding, involved)


def _waiters_for_gil(holder: ThreadReport, wait: Wait, facts: Observations) -> list[ThreadReport]:
    """The threads that wait for the GIL, if ``holder`` has it while it waits for a device; else []."""
    if not wait.detail.device or not wait.detail.device.holds_gil:
        return []
    for_gil = [(thread, want) for thread, want in facts.waits if want.kind is WaitKind.GIL and not want.being_released]
    return [thread for thread, want in for_gil if holder.tid in want.owner_tids]


class KernelWait(VerdictKind):
    """A thread sleeps in the kernel: a page that does not arrive, a file system that does not answer."""

    value = "kernel-wait"
    words = "blocked in the Linux kernel"
    what_to_do = "the file, the file system and its server are named"
    may_be_slow = movement_refutes_it = True
    can_be_dumped = False

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """Threads that sleep in the kernel for no lock: the main thread, in an operator, or awaited by others."""
        for thread, wait in facts.waits:
            side = wait.kernel
            if not side or not side.has_slept_long:
                continue
            waiters = [graph.threads[tid] for tid in graph.waiters.get(thread.tid, ())]
            if not (waiters or thread.dispatch or thread.tid == facts.pid):
                continue
            how = "uninterruptibly " if side.is_uninterruptible else ""
            where = f" ({side.channel})" if side.channel else ""
            since = ""
            if side.seconds is not None:  # 34 s, 12 min, 3.5 h
                seconds = f"{side.seconds:.2g} s" if side.seconds < 10 else f"{side.seconds:.0f} s"
                longer = f"{side.seconds / 60:.0f} min" if side.seconds < 7200 else f"{side.seconds / 3600:.1f} h"
                since = f" for {seconds if side.seconds < 120 else longer}"
            text = f"{waiting_clause(thread, wait)}: it has slept {how}in the kernel{where}{since}"
            if waiters:
                wants = [f"{waiter.label} {waiter.wait.phrase if waiter.wait else ''}" for waiter in waiters]
                text += f"; meanwhile {listed(wants)}"
            tids = (thread.tid, *(waiter.tid for waiter in waiters))
            yield Finding(self, f"{text}.", tids, wait.evidence, thread.innermost, wait=wait)

    def is_refuted(self, finding: Finding, facts: Observations, graph: WaitGraph) -> bool:
        return facts.has_run(finding.threads[0])  # the one that sleeps there

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        wait = finding.wait
        if not wait:
            return
        yield from wait.detail.about_other_end(wait.kind) or ()
        if wait.kernel and wait.kernel.is_out_of_memory:
            yield ("Raise that cgroup's memory.limit_in_bytes, or enable its OOM killer: echo 0 > memory.oom_control.")
        elif wait.kind.traits.advice_in_kernel:
            yield wait.kind.traits.advice_in_kernel
        if wait.kernel and not wait.kernel.stack and os.geteuid() != 0:
            yield "Run this as root to see the thread's kernel stack, too."


KERNEL_WAIT = KernelWait()
WAITING_EXTERNAL = WaitingExternal()
GIL_IN_DEVICE_CALL = GilInDeviceCall()
