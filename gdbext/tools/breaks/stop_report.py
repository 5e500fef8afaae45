"""The reports at the stops of dispatch-break."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from gdbext.cpython.threads.runtime import ThreadTable
from gdbext.diagnosis.report.thread_report import is_users_file
from gdbext.engine.arch.argument_places import SavedArgument, saved_arguments
from gdbext.errors import GdbextError
from gdbext.live.breakpoint_setter import value_of
from gdbext.live.dispatch_description import KeptWord, argument_texts, register_values

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.live.breakpoint_setter import StoppedThread
    from gdbext.tools.breaks.break_plan import BreakSite
    from gdbext.torch.registry import Operator
    from gdbext.torch.stack.key_choice import ExpectedLookup


class StopReports:
    """Reports of one request's stops. What does not change between two stops is read once: symbols, layout, operators;
    and an operator's table, as long as its bytes are the same."""

    def __init__(self, open_session: Callable[[], Session], why: bool = False) -> None:
        """``open_session`` gives a fresh session of the stopped process. ``why``: also what the key was found by, what
        the kernel can do, what follows, and the thread's own keys."""
        self._open = open_session
        self._why = why
        self._session: Session | None = None
        self._tables: dict[int, bytes] = {}
        self._lookups: dict[tuple[int, int], list[str]] = {}
        self._holders: dict[int, dict[str, SavedArgument]] = {}
        self.knows_tables = True
        """No kernel was registered since the session was opened: one may be in a library that was loaded with it."""

    def forget(self) -> None:
        """The process is another one, or has other operators."""
        self._session = None
        self._tables.clear()
        self._lookups.clear()
        self._holders.clear()

    def lines(self, site: BreakSite, thread: StoppedThread) -> list[str]:
        """Operator, place, arguments, the line of Python, key and kernel.

        What cannot be read is left out, and the last line says so. Raises TargetError.
        """
        lines = [f"dispatch-break: {site.name} at {site.event}: {site.what}"]
        bits = value_of(site.keyset, thread) if site.keyset else None
        try:
            session = self._current_session(site)
            operator = session.dispatcher.by_def(site.operator)
            if operator:
                lines += self._arguments(session, site, operator, thread)
            # The innermost line of the program's own code, else of any. The session's frames are of an earlier stop.
            frames = ThreadTable(session.python, session.errors.note).frames(thread.tid)
            for frame in [frame for frame in frames if is_users_file(frame.file)][:1] or frames[:1]:
                lines.append(f"  at {frame.file}:{frame.line or '?'} ({frame.function})")
            if operator and bits is not None:
                key = operator.address, bits
                if key not in self._lookups:
                    operator.forget_table()
                    self._lookups[key] = list((_lookup if self._why else _choice)(session, operator, bits))
                lines += self._lookups[key]
            if self._why:
                thread_pointer = thread.register(session.memory.architecture.thread_register)
                included, excluded = map(session.dispatcher.keys.text, session.dispatch_states.keysets(thread_pointer))
                lines.append(f"  thread {thread.tid} includes {included}, excludes {excluded}")
        except GdbextError as error:
            lines.append(f"  cannot be read: {error.what}")
        return lines

    def _current_session(self, site: BreakSite) -> Session:
        """A session that is right for this stop: the operator was there already, and its table is unchanged, where that
        is reported; else a new one."""
        session = self._session
        if session:
            session.memory.forget()
            if session.dispatcher.by_def(site.operator):
                if not site.keyset:
                    return session
                if self.knows_tables:
                    table = session.dispatcher.read_table(site.operator)
                    if self._tables.setdefault(site.operator, table) == table:
                        return session
        self.forget()
        session = self._session = self._open()
        self.knows_tables = True
        return session

    def _arguments(self, session: Session, site: BreakSite, operator: Operator, thread: StoppedThread) -> list[str]:
        """The arguments that are in registers, or whose registers survived in the function."""
        architecture, place = session.memory.architecture, site.arguments
        if not place:
            return []
        if not place.function:
            names = architecture.argument_registers
            values: list[KeptWord | None] = [KeptWord(thread.register(name)) for name in names]
        else:
            holders = self._holders.get(site.address)
            if holders is None:
                start, end = place.function
                code = list(architecture.decode(session.memory.read(start, end - start), start))
                holders = self._holders[site.address] = saved_arguments(architecture, code, site.address)
            values = register_values(architecture, holders, thread.register, session.memory.try_u64)
        texts = argument_texts(session, operator, values, place.skipped)
        return [f"  arguments {', '.join(texts)}"] if texts else []


def _choice(session: Session, operator: Operator, bits: int) -> Iterator[str]:
    """The key and the kernel on one line, and where that was registered."""
    link = next(iter(session.chains.chain(operator, bits)), None)
    if link:
        yield f"  key {session.dispatcher.keys.highest_key(bits)}, kernel {_function(link)}"
        if link.kernel.registered_at:
            yield f"        {link.kernel.registered_at}"


def _function(link: ExpectedLookup) -> str:
    name = link.kernel.name
    where = f" at {name.file}:{name.line}" if name.file else ""
    return f"{name.function or name.kind}{where}"


def _lookup(session: Session, operator: Operator, bits: int) -> Iterator[str]:
    """With --why: keyset, key, the kernel and those that are expected to follow."""
    keys = session.dispatcher.keys
    index, kernel = operator.kernel_for(bits)
    yield f"  keyset {keys.text(bits)} {bits:#x}"
    kinds = f"valid={kernel.valid:d} boxed={kernel.valid:d} unboxed={bool(kernel.unboxed or kernel.sym_unboxed):d}"
    yield f"  key {keys.highest_key(bits)}, table index {index}, {kinds}"
    links = session.chains.chain(operator, bits)
    for link in links[:1]:
        yield f"  kernel {_function(link)}" + (f", {link.kernel.registered_at}" if link.kernel.registered_at else "")
    for link in links[1:]:
        yield f"  expected then: {link.key}: {_function(link)}"
    if links and links[-1].certainty == "unknown":
        yield f"  further on: {links[-1].why}"
