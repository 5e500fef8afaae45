"""What is told at a stop of dispatch-break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.dispatcher.operator import Operator
    from gdbext.live.breaks import BreakSite
    from gdbext.session import Session


def stop_lines(session: Session, site: BreakSite, bits: int | None, tid: int, fs_base: int) -> list[str]:
    """Operator, place, keyset, key, index, validity, kernel, the thread's state and the expected chain.

    ``bits`` is the keyset where the place has one, ``fs_base`` that of the thread that stopped. What cannot be read is
    left out, and that is said.
    """
    lines = [f"dispatch-break: {site.name} at {site.event}: {site.what}"]
    try:
        operator = session.dispatcher.by_def(site.operator)
        if operator is not None and bits is not None:
            lines += _lookup(session, operator, bits)
        lines += _state(session, tid, fs_base)
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
            yield f"  kernel {function}" + (f", {link.cell.debug}" if link.cell.debug else "")
        else:
            yield f"  expected then: {link.cell.key}: {function}"
    if links and links[-1].certainty == "unknown":
        yield f"  further on: {links[-1].why}"


def _state(session: Session, tid: int, fs_base: int) -> Iterator[str]:
    included, excluded = session.dispatch_states.keysets(fs_base)
    keys = session.dispatcher.keys
    yield f"  thread {tid} includes {keys.text(included)}, excludes {keys.text(excluded)}"
