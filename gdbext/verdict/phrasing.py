"""Sentences about waits, in jstack's manner. Pure text; nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdbext.model.dispatch_frame import DispatchFrame, DispatchStage
from gdbext.model.thread import ThreadReport
from gdbext.model.wait import Resource, Wait
from gdbext.model.wait_kind import Naming, Relation


def thing(resource: Resource) -> str:
    """The resource with name and address: ``the mutex 0x7f00 (config_lock)``."""
    traits, name = resource.kind.traits, resource.name or resource.kind.traits.unnamed
    if traits.naming is Naming.OF:
        return f"{traits.noun} of {name}" if name else traits.noun
    if traits.naming is Naming.GUARDED:
        return f"{traits.noun} {name} (guard {resource.address:#x})"
    if traits.naming is Naming.ALONE and resource.name:
        return resource.name
    if traits.naming is Naming.IN_BRACKETS and resource.name:
        return f"{traits.noun} ({resource.name})"
    at = f" {resource.address:#x}" if resource.address else ""
    named = f" ({resource.name})" if resource.name else ""
    return f"{traits.noun}{at}{named}"


def waiting(wait: Wait) -> str:
    """What the thread does: ``waits for the GIL``, ``sleeps``, ``waits in read on fd 5 (pipe:[77])``."""
    resource, traits = wait.resource, wait.kind.traits
    if traits.naming is Naming.ALONE:
        return traits.doing.format(resource.name or traits.unnamed)
    text = traits.doing.format(thing(resource))
    if wait.companion is not None:
        text += f" (with mutex {wait.companion.address:#x})"
    return text


def place(step: DispatchFrame | None) -> str:
    """`` in aten::mm (Meta, in-kernel)``, or nothing outside the dispatcher."""
    if step is None:
        return ""
    in_kernel = step.stage is DispatchStage.IN_KERNEL
    detail = f"{step.key} kernel" if step.key and in_kernel else step.key or step.stage.value
    return f" in {step.qualified} ({detail})"


def who(thread: ThreadReport) -> str:
    """The thread with the operator it is in."""
    return thread.label + place(thread.innermost)


def owner_clause(wait: Wait, threads: Mapping[int, ThreadReport]) -> str:
    """``, which MainThread (tid 1) holds``; says when that is only inferred, gone or unknown."""
    if wait.handover:
        return ", which is free: it is about to go on"
    if not wait.owners:
        return ""
    gone = [owner for owner in wait.owners if owner.gone]
    if gone:
        tid = gone[0].tid
        # Python records a pthread_t, which nothing translates into an id once the thread has ended.
        owner = f"thread {tid}" if tid < 1 << 22 else f"the thread with the ident {tid:#x}"
        return f", which {owner} holds, and that thread does not exist in this process"
    names = listed([_label(owner.tid, threads) for owner in wait.owners])
    relation = wait.kind.traits.relation
    if relation in (Relation.IS, Relation.OWES):
        return "" if relation is Relation.IS else f", still to come from {names}"
    seems = "" if wait.certainty.is_proven else "seems to "
    if relation is Relation.RUNS:
        return f", which {names} {seems}{'run' if seems else 'runs'}"
    return f", which {names} {seems}{'hold' if seems or len(wait.owners) > 1 else 'holds'}"


def _label(tid: int, threads: Mapping[int, ThreadReport]) -> str:
    thread = threads.get(tid)
    return thread.label if thread else f"thread {tid}"


def listed(names: Sequence[str], limit: int = 3) -> str:
    """``a, b and 5 more``."""
    if len(names) <= 1:
        return "".join(names)
    if len(names) > limit:
        return f"{', '.join(names[:limit])} and {len(names) - limit} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def upper_first(text: str) -> str:
    """``text`` with a capital first letter."""
    return text[:1].upper() + text[1:]
