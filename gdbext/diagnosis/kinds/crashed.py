"""Crashes, and operators that enter themselves without end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gdbext.diagnosis.kinds.verdict_kind import VerdictKind
from gdbext.diagnosis.report.finding import Finding
from gdbext.diagnosis.report.suggestion import Suggestion
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.verdict.clauses import PATH_LENGTH, listed, operator_clause, thread_clause
from gdbext.diagnosis.verdict.graph import Observations, WaitGraph
from gdbext.diagnosis.verdict.recursion import longest_repetition
from gdbext.torch.stack import DispatchFrame


class Crashed(VerdictKind):
    """A thread got a fatal signal, or C++ called `std::terminate`."""

    value = "crash"
    words = "crashed"
    what_to_do = "the operator and kernel are named; `dispatch-bt --args`"
    is_defect = is_in_summary = True

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """One finding for each fatal signal; a stack overflow by a recursion is RunawayRecursion's."""
        for tid, crash in facts.crashes.items():
            if crash.is_stack_overflow and tid in facts.recursions:
                continue
            thread, master = graph.threads[tid], graph.threads.get(facts.masters.get(tid, 0))
            step = thread.innermost
            inside = f", kernel {step.kernel.function}" if step and step.kernel and step.kernel.function else ""
            if not step and master:  # a worker outside of the dispatcher works for the master's operator
                inside = f" at work for {thread_clause(master)}"
            elif not step and crash.function:
                below = f", called at {thread.python_line}" if thread.python_line else ""
                inside = f" in {crash.function}{below}"
            text = f"{thread.label} crashed{operator_clause(step)}{inside}: {crash.sentence}."
            step = step or (master.innermost if master else None)
            involved = (tid, master.tid) if master else (tid,)
            yield Finding(self, text, involved, step=step, cures=crash.next_steps)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        if involved:
            yield Suggestion("All native frames of the crash", f"dispatch-bt --native --thread {involved[0].tid}")
        yield from finding.cures
        if not finding.cures and finding.step and finding.step.op is not None:
            yield Suggestion("What else is registered for the operator", f"dispatch-op {finding.step.op}")


class RunawayRecursion(VerdictKind):
    """An operator dispatches to itself with the same keys."""

    value = "runaway-recursion"
    words = "endless recursion"
    what_to_do = "the repeated kernels are named; a kernel redispatches without excluding its key"
    is_defect = is_in_summary = True

    def find(self, facts: Observations, graph: WaitGraph) -> Iterator[Finding]:
        """One finding for each recursion, with the operators and keysets of one period, outermost first."""
        for tid, recursion in facts.recursions.items():
            thread, overflow = graph.threads[tid], facts.crashes.get(tid)
            names: dict[str, None] = {}
            for step in reversed(recursion.group):
                keyset = f" with DispatchKeySet({', '.join(step.keyset.keys)})" if step.keyset else ""
                names[f"{step.qualified}{keyset}"] = None
            path = "".join(names) if len(names) < 2 else " → ".join([*list(names)[:PATH_LENGTH], "…"])
            end = f"; it ended in {overflow.sentence}" if overflow else ""
            text = f"{thread.label} is in a runaway recursion: {path} repeated {recursion.depth} times{end}."
            repeats = f"repeat with period {len(recursion.group)}"
            evidence = (recursion.why, f"{recursion.steps} of {len(thread.dispatch)} dispatcher steps {repeats}")
            yield Finding(self, text, (tid,), evidence, recursion.innermost)

    def advice(self, finding: Finding, involved: Sequence[ThreadReport]) -> Iterator[str | Suggestion]:
        thread = next((thread for thread in involved if thread.dispatch), None)
        if not thread:
            return
        group, _ = longest_repetition(thread.dispatch)
        yield _advice_to_break(group or thread.dispatch[:1])
        step = thread.dispatch[0]
        if step.op is not None and step.keyset:
            yield Suggestion(
                "See which kernel that keyset selects", f"dispatch-lookup {step.qualified} {step.keyset.bits:#x}"
            )


def _advice_to_break(group: Sequence[DispatchFrame]) -> str:
    """Advice how to end a recursion; ``group``: the steps that repeat."""
    if all(step.event and step.event.is_redispatch for step in group):
        return (
            "The kernel must redispatch below its own key: redispatch(ks & c10::after_autograd_keyset), or guard the "
            "call with at::AutoDispatchBelowAutograd / ExcludeDispatchKeyGuard (Python: "
            "torch._C._AutoDispatchBelowAutograd)."
        )
    called = listed(sorted({step.qualified for step in group if step.op is not None})) or "the operator"
    # Beginnings of keys whose kernels can redispatch below their own key (c10/core/DispatchKey.h).
    above_backends = (
        *("Autograd", "Autocast", "ADInplaceOrView", "Python", "Functionalize", "FuncTorch", "Batched", "Conjugate"),
        *("Negative", "ZeroTensor", "BackendSelect", "Tracer", "PreDispatch", "Vmap", "Named", "TESTING_ONLY"),
        *("DeferredInit", "Fake"),
    )
    if any(step.key is not None and not step.key.startswith(above_backends) for step in group):
        return (
            f"A backend kernel calls {called} again and so reenters itself: no key is below its own, so "
            "call another operator, or the function that computes the result."
        )
    if any(step.kernel and " at " in step.kernel.function for step in group):
        return (
            f"A Python kernel calls {called} again and so reenters itself: call another operator, or redispatch "
            "below its own key: with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(KEY)), or "
            "op.redispatch(KEYS, …)."
        )
    return (
        f"A kernel calls {called} again with the same arguments and so reenters itself: call the function "
        "that computes the result, or another operator; or exclude its key with c10::impl::ExcludeDispatchKeyGuard."
    )


CRASH = Crashed()
RUNAWAY_RECURSION = RunawayRecursion()
