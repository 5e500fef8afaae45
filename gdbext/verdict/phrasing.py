"""Sentences about waits, in jstack's manner. Pure text; nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gdbext.model.facts import DispatchFrame, Resource, ThreadReport, Wait

_KIND_WORDS = {
    "gil": "the GIL",
    "mutex": "the mutex",
    "rwlock": "the read-write lock",
    "condvar": "the condition variable",
    "semaphore": "the semaphore",
    "python-lock": "the Python lock",
    "static-init": "the initialisation of",
    "once": "a one-time initialisation",
    "loader-lock": "the dynamic loader's lock",
    "libc-lock": "a lock inside the C library",
    "join": "the end of",
    "barrier": "the barrier",
    "worker-pool": "worker threads",
    "queue": "the queue",
    "futex": "an unidentified futex",
    "device": "the device",
    "collective": "the other ranks",
}
_NAME_IS_ALL = frozenset({"io", "child-process", "sleep", "collective", "device", "worker-pool", "join"})
"""Kinds whose name says it all: the address of the futex below would only distract."""


def thing(resource: Resource) -> str:
    """The resource with name and address: ``the mutex 0x7f00 (config_lock)``."""
    word = _KIND_WORDS.get(resource.kind, resource.kind)
    if resource.kind == "gil":
        return f"{word} of {resource.name}" if resource.name else word
    if resource.kind == "static-init":
        return f"{word} {resource.name or 'a static variable'} (guard {resource.address:#x})"
    if resource.kind in _NAME_IS_ALL and resource.name:
        in_brackets = resource.kind in ("collective", "device", "worker-pool")
        return f"{word} ({resource.name})" if in_brackets else resource.name
    at = f" {resource.address:#x}" if resource.address else ""
    name = f" ({resource.name})" if resource.name else ""
    return f"{word}{at}{name}"


def waiting(wait: Wait) -> str:
    """What the thread does: ``waits for the GIL``, ``sleeps``, ``waits to read fd 5 (pipe:[77])``."""
    resource = wait.resource
    if resource.kind == "sleep":
        return resource.name or "sleeps"
    if resource.kind == "io":
        return f"waits in {resource.name}"
    if resource.kind == "join":
        return f"waits for the end of {resource.name or 'a thread'}"
    text = f"waits for {thing(resource)}"
    if wait.companion is not None:
        text += f" (with mutex {wait.companion.address:#x})"
    return text


def place(step: DispatchFrame | None) -> str:
    """`` in aten::mm (Meta, in-kernel)``, or nothing outside the dispatcher."""
    if step is None:
        return ""
    detail = f"{step.key} kernel" if step.key and step.stage == "in-kernel" else step.key or step.stage
    return f" in {step.qualified} ({detail})"


def innermost(thread: ThreadReport) -> DispatchFrame | None:
    """The innermost step of the thread, None outside the dispatcher."""
    return thread.dispatch[0] if thread.dispatch else None


def who(thread: ThreadReport) -> str:
    """The thread with the operator it is in."""
    return thread.label + place(innermost(thread))


def owner_clause(wait: Wait, threads: Mapping[int, ThreadReport]) -> str:
    """``, which MainThread (tid 1) holds``; says when that is only inferred, gone or unknown."""
    if wait.handover:
        return ", which is free: it is about to go on"
    if not wait.owners:
        return ""
    gone = [owner for owner in wait.owners if owner.state == "gone"]
    if gone:
        tid = gone[0].tid
        # Python records a pthread_t, which nothing translates into an id once the thread has ended.
        owner = f"thread {tid}" if tid < 1 << 22 else f"the thread with the ident {tid:#x}"
        return f", which {owner} holds, and that thread does not exist in this process"
    names = listed([_label(owner.tid, threads) for owner in wait.owners])
    seems = "" if wait.certainty == "recorded" else "seems to "
    verb = "hold" if seems or len(wait.owners) > 1 else "holds"
    if wait.resource.kind in ("barrier", "worker-pool", "join", "collective", "queue", "condvar"):
        return "" if wait.resource.kind == "join" else f", still to come from {names}"
    if wait.resource.kind == "static-init":
        return f", which {names} {seems}{'run' if seems else 'runs'}"
    return f", which {names} {seems}{verb}"


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
