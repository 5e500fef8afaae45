"""What to try next, for each kind of verdict, in words and commands that fit this process."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from gdbext.model.facts import ThreadReport, Verdict, Wait


def advice(verdict: Verdict, threads: Sequence[ThreadReport], pid: int, is_core: bool) -> tuple[str, ...]:
    """Lines of advice, the most useful first."""
    known = {thread.tid: thread for thread in threads}
    involved = [known[tid] for tid in verdict.threads if tid in known]
    teller = _TELLERS.get(verdict.kind)
    lines = list(teller(verdict, involved)) if teller is not None else []
    if verdict.op is not None and involved and any(thread.dispatch for thread in involved):
        tid = next(thread.tid for thread in involved if thread.dispatch)
        lines.append(f"The whole path through the dispatcher: dispatch-bt --thread {tid}")
    if not is_core and verdict.kind in ("busy", "blocked", "waiting-external", "idle"):
        lines.append("Stuck or only slow? Look more than once: dispatch-diagnose --samples 5 --interval 1")
    if not is_core and verdict.kind not in ("busy", "idle"):
        lines.append(f"Keep the evidence before you kill it: gcore {pid}")
    return tuple(lines)


def _deadlock(verdict: Verdict, involved: Sequence[ThreadReport]) -> Iterator[str]:
    kinds = {edge.waits_for.kind for edge in verdict.cycle}
    if "gil" in kinds and kinds & {"mutex", "rwlock", "static-init", "once", "libc-lock", "loader-lock"}:
        yield (
            "Never ask for a native lock while holding the GIL: release it first (py::gil_scoped_release, "
            "Py_BEGIN_ALLOW_THREADS) around the code that locks."
        )
    if "static-init" in kinds:
        yield (
            "Run the initialiser once at import time, before threads start (call the operator once), or keep "
            "Python out of it: a static's guard is a lock like any other."
        )
    if "gil" not in kinds:
        yield "Take these locks in one order everywhere, or together (std::scoped_lock)."
    if kinds & {"queue", "worker-pool", "barrier", "join", "condvar"}:
        yield "Do not wait for other threads while holding what they need: release it before the wait."
    del involved


def _self_deadlock(verdict: Verdict, involved: Sequence[ThreadReport]) -> Iterator[str]:
    yield "The lock is not recursive: do not call back into code that takes it, or use a recursive mutex (RLock)."
    del verdict, involved


def _orphaned(verdict: Verdict, involved: Sequence[ThreadReport]) -> Iterator[str]:
    yield "Start processes with 'spawn' or 'forkserver' (multiprocessing.set_start_method), or fork before threads."
    yield "Where the code is yours: pthread_atfork handlers that take the lock before fork and release it after."
    del verdict, involved


def _missing_workers(verdict: Verdict, involved: Sequence[ThreadReport]) -> Iterator[str]:
    yield "Start worker processes with 'spawn' instead of 'fork'; thread pools do not survive fork."
    if any(thread.wait is not None and "OpenMP" in thread.wait.resource.name for thread in involved):
        yield "Or call torch.set_num_threads(1) before the fork (or set OMP_NUM_THREADS=1), so that no pool is needed."
    del verdict


def _runaway(verdict: Verdict, involved: Sequence[ThreadReport]) -> Iterator[str]:
    yield (
        "The kernel must redispatch below its own key: redispatch(ks & c10::after_autograd_keyset), or guard the call "
        "with at::AutoDispatchBelowAutograd / ExcludeDispatchKeyGuard (Python: torch._C._AutoDispatchBelowAutograd)."
    )
    step = next((thread.dispatch[0] for thread in involved if thread.dispatch), None)
    if step is not None and step.op is not None and step.keyset is not None:
        yield f"See where that keyset leads: dispatch-lookup {step.qualified} {step.keyset.bits:#x}"
    del verdict


def _crash(verdict: Verdict, involved: Sequence[ThreadReport]) -> Iterator[str]:
    if involved:
        yield f"All native frames of the crash: dispatch-bt --native --thread {involved[0].tid}"
    if verdict.op is not None:
        yield f"What else is registered for the operator: dispatch-op {verdict.op}"


def _blocked(verdict: Verdict, involved: Sequence[ThreadReport]) -> Iterator[str]:
    last = involved[-1] if involved else None
    if last is not None and last.wait is not None:
        yield from _about_wait(last.wait)
    line = (last.user_line or last.python_line) if last is not None else ""
    if line:
        yield f"The Python line that waits: {line}"
    del verdict


def _about_wait(wait: Wait) -> Iterator[str]:
    kind = wait.resource.kind
    if kind == "condvar":
        yield "Look for the code that should notify it: the notification was lost or its thread has ended."
    elif kind == "python-lock":
        yield "A threading.Lock does not record its owner; put a threading.RLock in its place, which does."
    elif kind == "io":
        yield "Look at the other end of the descriptor: the peer is stuck, or keeps it open without writing."
    elif kind in ("libc-lock", "futex"):
        yield "This lock records no owner: look for a thread that is inside the same library (all-threads --stacks)."


def _external(verdict: Verdict, involved: Sequence[ThreadReport]) -> Iterator[str]:
    wait = involved[0].wait if involved else None
    kind = wait.resource.kind if wait is not None else ""
    if "kill -CONT" in verdict.summary:
        yield "What it did before: dispatch-bt; whether it hangs as well: dispatch-diagnose again, once it goes on."
        return
    if kind == "collective":
        yield "Look at the other ranks with the same command: one is not in this collective, or in another one."
        yield "TORCH_DISTRIBUTED_DEBUG=DETAIL makes the next run check that all ranks call the same collectives."
    elif kind == "device":
        yield "The device works or hangs: look at it (nvidia-smi), and run with CUDA_LAUNCH_BLOCKING=1."
    elif wait is not None and ("held by" in wait.resource.name or kind == "child-process"):
        child = re.search(r"(?:held by|process(?:es)?) (\d+)", wait.resource.name)
        pid = child.group(1) if child is not None else "CHILD"
        yield f"Look at the child process with the same command: scripts/dispatch -p {pid}"
        if "waits to write to" in wait.resource.name and kind == "child-process":
            yield "Read what it writes before you wait for its end (subprocess: communicate(); multiprocessing: get())."
        if "stopped" in wait.resource.name:
            yield f"It is stopped (SIGSTOP, Ctrl+Z or a debugger); this lets it go on: kill -CONT {pid}"
    else:
        yield "Look at the other end: the peer that should send."


def _idle(verdict: Verdict, involved: Sequence[ThreadReport]) -> Iterator[str]:
    yield "If it should be working: all-threads shows what each thread waits for; is this the right process of the job?"
    del verdict, involved


_Teller = Callable[[Verdict, Sequence[ThreadReport]], Iterator[str]]
_TELLERS: Mapping[str, _Teller] = {
    "crash": _crash,
    "runaway-recursion": _runaway,
    "deadlock": _deadlock,
    "self-deadlock": _self_deadlock,
    "orphaned-lock": _orphaned,
    "missing-workers": _missing_workers,
    "blocked": _blocked,
    "waiting-external": _external,
    "idle": _idle,
}
