"""A live process without any debugger: stopped with PTRACE_SEIZE, read through /proc/PID/mem, always detached again.

Seized threads resume by themselves when we die, even by SIGKILL; a stop that was in force before (SIGSTOP) stays in
force, and signals that arrive meanwhile are passed on.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal as signals
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from types import FrameType
from typing import Any

from gdbext.engine.arch import Architecture, architectures
from gdbext.engine.targets.base_target import Signal, TargetThread
from gdbext.engine.targets.live import proc_checks, ptrace
from gdbext.engine.targets.live.local_process import LocalProcess
from gdbext.engine.targets.live.thread_motion import kernel_side, syscall_text
from gdbext.engine.targets.system import linux
from gdbext.errors import NotPermitted, TargetError, TargetGone, as_root

STOP_SECONDS = 1.0
"""Seconds to wait for threads to stop. Only a thread in an uninterruptible wait in the kernel takes longer."""


class ProcThread(TargetThread):
    """One thread that is seized, or about to be."""

    def __init__(self, architecture: Architecture, pid: int, tid: int, kernel_state: str, name: str) -> None:
        """State and name are those just before it is stopped."""
        self.tid = tid
        self.name = self.listed_name = name
        self.stopped = False
        self.held = 0  # the number of the signal that is held back from it, 0 for none
        self._architecture = architecture
        self._pid = pid
        self.kernel_state = kernel_state
        if kernel_state in ("S", "D"):
            self.kernel_side = kernel_side(pid, tid, kernel_state, syscall_text(pid, tid), architecture)

    @property
    def cannot_stop(self) -> bool:
        """It has slept uninterruptibly for so long that it cannot be stopped: once seized, it would stay traced."""
        return bool(self.kernel_side and self.kernel_side.cannot_stop)

    def registers(self) -> Mapping[str, int]:
        """All of the architecture's register sets. Raises TargetGone, TargetError (it could not be stopped)."""
        if self.stopped:
            return self._registers
        why = "it is in an uninterruptible wait in the kernel (state D): a driver or a network file system"
        help = as_root(f"cat /proc/{self._pid}/task/{self.tid}/stack   shows where")
        if self.kernel_state == "R":
            why = f"it is ready to run, and no CPU was free for it within {STOP_SECONDS:g} s"
            help = "see what uses the CPUs (top), its niceness and its quota; then try again"
        raise TargetError(f"thread {self.tid} could not be stopped", why=why, help=help)

    @cached_property
    def _registers(self) -> dict[str, int]:
        return ptrace.registers(self.tid, self._architecture)

    def float_registers(self) -> Mapping[str, int]:
        """Not cached: they are rarely wanted, and once. {} if the kernel refuses."""
        try:
            return ptrace.float_registers(self.tid, self._architecture) if self.stopped else {}
        except TargetError:
            return {}

    def note_stop(self, stop: ptrace.PtraceStop) -> None:
        """Note that the thread has stopped, the signal that is held back, and a crash that it means."""
        self.stopped = True
        self.held = stop.signal
        self.stop_signal = stop.stopped_by
        if stop.signal in linux.CRASH_SIGNALS:
            self.signal = Signal(stop.signal, linux.signal_name(stop.signal))
            if information := ptrace.signal_information(self.tid):
                code, address = information
                fault = linux.fault_address(stop.signal, code, address)
                self.signal = self.signal._replace(code=code, address=fault)


class ProcTarget(LocalProcess):
    """A process that is stopped from construction to close(); a context manager. Use it from one thread only (ptrace's
    rule)."""

    def __init__(self, pid: int) -> None:
        """Stop process ``pid``. Raises NoSuchProcess, NotPermitted, ForeignArchitecture, TargetGone."""
        self.pid = pid
        self._threads: dict[int, ProcThread] = {}  # by tid
        self._unstoppable: dict[int, TargetThread] = {}  # threads that cannot be stopped, and were not seized
        self._handlers: dict[int, Any] = {}  # signal number → the handler to restore in close()
        self.architecture = architectures.by_machine(proc_checks.check_process(pid))
        atexit.register(self.close)
        self._catch_termination()
        try:
            self._memory = proc_checks.open_memory(pid)
            self._stop_all()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> ProcTarget:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def is_stopped(self) -> bool:
        """All threads could be seized; False if one of them cannot be stopped."""
        return not self._unstoppable

    def add_sleepers(self, threads: Iterable[TargetThread]) -> None:
        """Replace the threads that cannot be stopped by those of ``threads``, which are described as they sleep."""
        for thread in threads:
            if thread.tid in self._unstoppable and not thread.runs_on:
                self._unstoppable[thread.tid] = thread

    def threads(self) -> Sequence[TargetThread]:
        """All threads that could be seized, and those that cannot be stopped, by tid."""
        threads: dict[int, TargetThread] = {**self._threads, **self._unstoppable}
        return [threads[tid] for tid in sorted(threads)]

    def selected_thread(self) -> TargetThread | None:
        """The main thread; the lowest tid if that one has exited."""
        return self._threads.get(self.pid) or next(iter(self.threads()), None)

    def close(self) -> None:
        """Resume every thread with the signal that was held back from it, in the order of their stops, so that all are
        stopped equally long; idempotent."""
        atexit.unregister(self.close)
        exited = [tid for tid in list(self._threads) if not _detach(self._threads.pop(tid))]
        if exited:
            _reap(self.pid, exited)
        super().close()
        for number, handler in self._handlers.items():
            signals.signal(number, handler)
        self._handlers.clear()

    def _catch_termination(self) -> None:
        """Make terminating signals raise SystemExit, so that close() passes on the signals that are held back."""

        def leave(number: int, _: FrameType | None) -> None:
            raise SystemExit(128 + number)

        for number in (signals.SIGTERM, signals.SIGHUP, signals.SIGQUIT):
            if signals.getsignal(number) is signals.SIG_DFL:
                try:
                    self._handlers[number] = signals.signal(number, leave)
                except ValueError:  # not in the main thread: the owner of the process decides
                    return

    def _stop_all(self) -> None:
        """Stop every thread, until a new list of threads has no new one. Seizing does not stop a thread, so all are
        seized before the first is interrupted."""
        for _ in range(100):  # a process may start threads faster than they can be stopped
            try:
                stats = proc_checks.thread_stats(self.pid, {*self._threads, *self._unstoppable})
            except OSError as error:
                raise TargetGone.of(self.pid) from error
            new = []
            for tid, (state, name) in stats.items():
                if state not in "ZX":
                    thread = ProcThread(self.architecture, self.pid, tid, state, name)
                    if thread.cannot_stop:
                        self._unstoppable[tid] = thread
                    else:
                        new.append(thread)
            if not new:
                break
            for thread in new:
                self._seize(thread)
            if self.stopped_since is None:
                self.stopped_since = time.perf_counter()
            for thread in new:
                if thread.tid in self._threads:
                    try:
                        ptrace.interrupt(thread.tid)
                    except OSError:  # it has exited since
                        del self._threads[thread.tid]
            self._await_stops()
        if not self._threads and not self._unstoppable:
            raise TargetGone.of(self.pid)

    def _seize(self, thread: ProcThread, is_first: bool = True) -> None:
        """Become the thread's tracer, and add it to ``_threads``; no effect if it has exited. Raises NotPermitted.
        ``is_first``: it is the first attempt; a second one follows, since another tracer may have held it briefly."""
        self._threads[thread.tid] = thread  # first: an interrupt in between must not leave it behind
        try:
            ptrace.seize(thread.tid)
        except OSError as error:
            del self._threads[thread.tid]
            if error.errno == errno.ESRCH:
                return
            if proc_checks.tracer(self.pid, thread.tid) == os.getpid():
                self._threads[thread.tid] = thread  # our earlier stop did not end: it has not run meanwhile
                return
            proc_checks.check_not_traced(self.pid, thread.tid)
            try:
                if proc_checks.thread_state(self.pid, thread.tid) in "ZX":
                    return
            except OSError:  # it has exited
                return
            if is_first:
                self._seize(thread, is_first=False)
            elif error.errno in (errno.EPERM, errno.EACCES):
                raise proc_checks.refusal(self.pid) from error
            else:
                what = f"cannot stop thread {thread.tid} of process {self.pid}: {error.strerror}"
                raise NotPermitted(what) from error

    def _await_stops(self) -> None:
        """Wait until all seized threads have stopped, at most STOP_SECONDS. Those that exited are dropped."""
        deadline = time.monotonic() + STOP_SECONDS
        pause = 0.0001
        while waiting := [thread for thread in self._threads.values() if not thread.stopped]:
            for thread in waiting:
                try:
                    stop = ptrace.poll(thread.tid)
                except ChildProcessError:  # it exited, and its exit was not reported to us
                    stop = ptrace.PtraceStop(exited=True, signal=0)
                if stop and stop.exited:
                    self._threads.pop(thread.tid, None)
                elif stop:
                    thread.note_stop(stop)
            if time.monotonic() > deadline:
                return
            time.sleep(pause)
            pause = min(pause * 2, 0.001)


def _detach(thread: ProcThread) -> bool:
    """Let the thread resume with the signal that is held back from it; False if it has exited."""
    try:
        if not thread.stopped:
            stop = ptrace.poll(thread.tid)
            if not stop or stop.exited:
                return stop is None  # still in the kernel: it cannot be detached, and resumes as soon as we exit
            thread.note_stop(stop)
        ptrace.detach(thread.tid, thread.held)
    except OSError:
        return False
    return True


def _reap(pid: int, tids: Collection[int]) -> None:
    """Wait for threads that exited while we traced them: until then the process is a zombie that its parent cannot
    collect, for as long as we live. If we are the parent, the code that started it collects it."""
    left = {*tids} - ({pid} if proc_checks.parent(pid) == os.getpid() else set())
    end = time.monotonic() + 0.2
    while left and time.monotonic() < end:
        for tid in sorted(left, reverse=True):  # the main thread is reported when all others are collected
            try:
                stop = ptrace.poll(tid)
            except ChildProcessError:
                left.discard(tid)
            else:
                left -= {tid} if stop and stop.exited else set()
        if left:
            time.sleep(0.001)
