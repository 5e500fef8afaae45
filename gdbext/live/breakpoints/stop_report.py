"""The report at a stop of dispatch-break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.live.breakpoints.conditions import value_of
from gdbext.live.hooks.arguments import argument_texts, holders, register_values

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.live.breakpoints.break_plan import BreakSite
    from gdbext.live.breakpoints.conditions import StoppedThread
    from gdbext.torch.registry.operators import Operator


def stop_lines(session: Session, site: BreakSite, thread: StoppedThread) -> list[str]:
    """Operator, place, keyset, key, index, validity, kernel, the thread's state and the expected chain.

    What cannot be read is left out, and the last line says so. Raises TargetError.
    """
    lines = [f"dispatch-break: {site.name} at {site.event}: {site.what}"]
    bits = None if site.keyset is None else value_of(site.keyset, thread)
    try:
        operator = session.dispatcher.by_def(site.operator)
        if operator is not None and bits is not None:
            lines += _lookup(session, operator, bits)
        if operator is not None:
            lines += _arguments(session, site, operator, thread)
        lines += _state(session, thread.tid, thread.register(session.memory.architecture.thread_register))
    except GdbextError as error:
        lines.append(f"  cannot be read: {error.what}")
    return lines


def _lookup(session: Session, operator: Operator, bits: int) -> Iterator[str]:
    keys = session.dispatcher.keys
    index, kernel = operator.kernel_for(bits)
    yield f"  keyset {keys.text(bits)} {bits:#x}"
    kinds = f"valid={kernel.valid:d} boxed={kernel.valid:d} unboxed={bool(kernel.unboxed or kernel.sym_unboxed):d}"
    yield f"  key {keys.highest_key(bits)}, table index {index}, {kinds}"
    links = session.chains.chain(operator, bits)
    for number, link in enumerate(links):
        name = link.name
        where = f" at {name.file}:{name.line}" if name.file else ""
        function = f"{name.function or name.kind}{where}"
        if number == 0:
            yield f"  kernel {function}" + (f", {link.entry.debug}" if link.entry.debug else "")
        else:
            yield f"  expected then: {link.entry.key}: {function}"
    if links and links[-1].certainty == "unknown":
        yield f"  further on: {links[-1].why}"


def _arguments(session: Session, site: BreakSite, operator: Operator, thread: StoppedThread) -> Iterator[str]:
    """The arguments that are in registers, or whose registers survived in the function."""
    architecture, place = session.memory.architecture, site.arguments
    if place is None:
        return
    if place.function is None:
        values: list[int | None] = [thread.register(name) for name in architecture.argument_registers]
    else:
        start, end = place.function
        code = list(architecture.decode(session.memory.read(start, end - start), start))
        places = holders(architecture, code, site.address)
        values = register_values(architecture, places, thread.register, session.memory.try_u64)
    texts = argument_texts(session, operator, values, place.skipped)
    if texts:
        yield f"  arguments {', '.join(texts)}"


def _state(session: Session, tid: int, thread_pointer: int) -> Iterator[str]:
    included, excluded = session.dispatch_states.keysets(thread_pointer)
    keys = session.dispatcher.keys
    yield f"  thread {tid} includes {keys.text(included)}, excludes {keys.text(excluded)}"
