"""The breakpoints of dispatch-break, of one request and of all, through all runs of the program, and their reports.

Before torch is loaded, and again when the program has exited, a pending breakpoint on
``at::getStepCallbacksUnlessEmpty`` takes their place. The first dispatch reaches it, after torch's operators are
registered. The registration watch notices operators that are registered later.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from gdbext.cpython.threads.runtime import ThreadTable
from gdbext.diagnosis.report.thread_report import is_users_file
from gdbext.diagnosis.threads.thread_reporting import report_stack
from gdbext.engine.arch.argument_places import SavedArgument, saved_arguments
from gdbext.engine.targets.base_target import TargetThread
from gdbext.engine.unwind.frame_steps import CfaRule
from gdbext.errors import GdbextError, TargetError, UsageError
from gdbext.live.breakpoint_setter import holds, value_of
from gdbext.live.dispatch_description import KeptWord, argument_texts, register_values
from gdbext.live.registrations import KernelWatch, RegistrationWatch, is_generated
from gdbext.tools.breaks.break_plan import (
    MISSING,
    BreakPlan,
    BreakSite,
    OpenCalls,
    Opening,
    cfa_in,
    end_site,
    what_is_awaited,
)
from gdbext.tools.breaks.breaks_section import BreakRequest, PlacedBreakpoint, RequestedBreakpoints
from gdbext.torch.assumed_symbols import REGISTER_SCHEMA_FUNCTION, STEP_CALLBACKS, STEP_CALLBACKS_FUNCTION
from gdbext.torch.registry.dispatch_table import registration_text
from gdbext.torch.registry.operator_names import matcher
from gdbext.torch.registry.schema import hidden_result
from gdbext.torch.stack.roles import Role, classify

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.arch import Architecture
    from gdbext.live.breakpoint_setter import Breakpoint, BreakpointSetter, Condition, StoppedThread, Trap
    from gdbext.torch.registry import Operator
    from gdbext.torch.stack.key_choice import ExpectedLookup


_COLD = ".cold"  # the end of the name of the part of a function that the compiler has split off


class _ThreadAtStop(TargetThread):
    """A thread at a breakpoint, for the readers of stacks: gdb counts it as running while it handles the breakpoint."""

    def __init__(self, thread: StoppedThread, architecture: Architecture) -> None:
        self.tid = thread.tid
        self._thread, self._architecture = thread, architecture

    def registers(self) -> Mapping[str, int]:
        names = (*self._architecture.general_registers, self._architecture.thread_register)
        return {name: self._thread.register(name) for name in names}


@dataclass
class _StopReports:
    """Makes the reports of one request's stops. Symbols, layout and operators are read once, and an operator's table
    again only if its bytes have changed."""

    _open: Callable[[], Session]
    """Opens a session of the stopped process."""
    _why: bool
    """Also report the keyset, the kernel's properties, the kernels that follow, and the thread's own keys."""
    knows_tables: bool = field(default=True, init=False)
    """False if a kernel was registered since the session was opened: a library may have been loaded with it."""
    _session: Session | None = field(default=None, init=False)
    _tables: dict[int, bytes] = field(default_factory=dict, init=False)
    """OperatorEntry → the bytes of its table."""
    _lookups: dict[tuple[int, int], list[str]] = field(default_factory=dict, init=False)
    """(OperatorEntry, keyset) → the lines on key and kernel."""
    _holders: dict[int, dict[str, SavedArgument]] = field(default_factory=dict, init=False)
    """Address of a site → argument register → the register or stack slot that holds its value there."""

    def forget(self) -> None:
        """Forget everything: the process is another one, or has other operators."""
        self._session = None
        self._tables.clear()
        self._lookups.clear()
        self._holders.clear()

    def lines(self, site: BreakSite, thread: StoppedThread) -> list[str]:
        """The lines on a stop: operator, place, arguments, the line of Python, key and kernel.

        Unreadable parts are left out, and the last line says so. Raises TargetError.
        """
        if site.event == MISSING:
            return self._lines_on_missing(thread)
        lines = [f"dispatch-break: {site.name} at {site.event}: {site.what}"]
        bits = value_of(site.keyset, thread) if site.keyset else None
        try:
            session = self._current_session(site)
            operator = session.dispatcher.by_def(site.operator)
            if operator:
                lines += self._arguments(session, site, operator, thread)
            # The innermost line of the program's own code, else of any. The session may have frames of an earlier stop.
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

    def _lines_on_missing(self, thread: StoppedThread) -> list[str]:
        """The lines on a stop at the entry of ``OperatorEntry::reportError(DispatchKey)``: operator, key, keyset,
        arguments, the line of Python, and the keys that have a kernel. Raises TargetError."""
        session = self._open()
        architecture, keys = session.memory.architecture, session.dispatcher.keys
        entry, key_value, *_ = (thread.register(name) for name in architecture.argument_registers)
        lines = []
        try:
            operator = session.dispatcher.by_def(entry)
            name = operator.qualified if operator else "an unknown operator"
            lines.append(f"dispatch-break: {name} at missing: no kernel, PyTorch is about to raise NotImplementedError")
            report = report_stack(session, _ThreadAtStop(thread, architecture), native=False, explained=True)
            step = report.innermost if report.innermost and report.innermost.qualified == name else None
            arguments, bits = _arguments_of_caller(session, operator, thread) if operator else ([], None)
            slot = keys.slot_of_value.get(key_value & 0xFFFF)  # DispatchKey is a uint16_t (c10/core/DispatchKey.h)
            if bits is None and step and step.keyset:
                bits = step.keyset.bits
            if bits is not None and keys.table_index(bits) != slot:
                bits = None  # it is not the keyset whose key the function got
            arguments = arguments or [argument.short for argument in step.arguments] if step else arguments
            lines += [f"  arguments {', '.join(arguments)}"] if arguments else []
            key = keys.own_name(keys.key_of_index(slot)) if slot is not None else "unknown"
            lines.append(f"  key {key}, {f'keyset {keys.text(bits)}' if bits is not None else 'keyset unknown'}")
            if report.user_line or report.python_line:
                lines.append(f"  at {report.user_line or report.python_line}")
            if operator:
                lines.append(f"  kernels exist for {', '.join(session.tables.active_keys(operator)) or 'no key'}")
        except GdbextError as error:
            lines.append(f"  cannot be read: {error.what}")
        return lines

    def _current_session(self, site: BreakSite) -> Session:
        """The last session if it knows the operator, and the operator's table is unchanged or not needed; else a new
        one."""
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
        """The line with the arguments that are in registers, or whose registers survived in the function."""
        architecture = session.memory.architecture
        if site.skipped is None:
            return []
        if not site.function:
            names = architecture.argument_registers
            values: list[KeptWord | None] = [KeptWord(thread.register(name)) for name in names]
        else:
            holders = self._holders.get(site.address)
            if holders is None:
                start, end = site.function
                code = list(architecture.decode(session.memory.read(start, end - start), start))
                holders = self._holders[site.address] = saved_arguments(architecture, code, site.address)
            values = register_values(architecture, holders, thread.register, session.memory.try_u64)
        texts = argument_texts(session, operator, values, site.skipped)
        return [f"  arguments {', '.join(texts)}"] if texts else []


def _arguments_of_caller(session: Session, operator: Operator, thread: StoppedThread) -> tuple[list[str], int | None]:
    """(arguments in words, the keyset that was passed or None) of the ``call`` or ``redispatch`` of the operator that
    has just called the function at whose entry the thread is; empty for another caller. Raises GdbextError."""
    architecture = session.memory.architecture
    pointer = thread.register(architecture.stack_pointer)
    returns_to = architecture.return_address(
        lambda address, _: thread.word(address).to_bytes(8, "little"), pointer + architecture.call_pushes
    )
    function = session.symbolizer.function(returns_to - 1)
    role = classify(function) if function else None
    if not function or not role or role.role is not Role.OPERATOR or function.name.endswith(_COLD):
        return [], None
    code = list(architecture.decode(session.memory.read(function.start, function.size), function.start))
    site = next((insn.address for insn in code if insn.end == returns_to), None)
    if site is None:
        return [], None

    def register(name: str) -> int:
        """The register as it was at the call, before that pushed its return address."""
        is_pointer = name == architecture.stack_pointer
        return thread.register(name) + (architecture.call_pushes if is_pointer else 0)

    holders = saved_arguments(architecture, code, site)
    values = register_values(architecture, holders, register, session.memory.try_u64)
    if role.event == "call":
        return argument_texts(session, operator, values, 0), None
    schema = operator.schema
    uses_sret = hidden_result(schema.text) if schema else None
    passed = values[architecture.leading_arguments(uses_sret)] if uses_sret is not None else None
    return argument_texts(session, operator, values, 1), passed.value if passed and passed.size == 8 else None


def _choice(session: Session, operator: Operator, bits: int) -> Iterator[str]:
    """The lines on the key and the kernel for the keyset ``bits``, and on the kernel's registration."""
    link = next(iter(session.chains.chain(operator, bits)), None)
    if link:
        yield f"  key {session.dispatcher.keys.highest_key(bits)}, kernel {_function(link)}"
        if link.kernel.registered_at:
            yield f"        {registration_text(link.kernel.registered_at)}"


def _function(link: ExpectedLookup) -> str:
    """The kernel's function with file and line, if these are known."""
    name = link.kernel.name
    where = f" at {name.file}:{name.line}" if name.file else ""
    return f"{name.function or name.kind}{where}"


def _lookup(session: Session, operator: Operator, bits: int) -> Iterator[str]:
    """The lines with --why: keyset ``bits``, key, kernel, and the kernels that are expected to follow."""
    keys = session.dispatcher.keys
    index, kernel = operator.kernel_for(bits)
    yield f"  keyset {keys.text(bits)} {bits:#x}"
    kinds = f"valid={kernel.valid:d} boxed={kernel.valid:d} unboxed={bool(kernel.unboxed or kernel.sym_unboxed):d}"
    yield f"  key {keys.highest_key(bits)}, table index {index}, {kinds}"
    links = session.chains.chain(operator, bits)
    for link in links[:1]:
        yield f"  kernel {_function(link)}" + (
            f", {registration_text(link.kernel.registered_at)}" if link.kernel.registered_at else ""
        )
    for link in links[1:]:
        yield f"  then expected: {link.key}: {_function(link)}"
    if links and links[-1].certainty == "unknown":
        yield f"  after that: {links[-1].why}"


@dataclass
class _Placed:
    """A breakpoint of a request: at a site, or as a placeholder until a registration (``awaits``, in words)."""

    breakpoint: Breakpoint
    site: BreakSite | None = None
    awaits: str = ""


@dataclass
class BreakSet:
    """The breakpoints of one request."""

    request: BreakRequest
    _setter: BreakpointSetter
    _open_session: Callable[[], Session]
    """Opens a session of the stopped process."""
    _watch_of: Callable[[Session], RegistrationWatch]
    """Returns the watch that all requests share."""
    _watch_kernels: Callable[[Session], None]
    """Begins to watch for generated kernels."""
    _show: Callable[[str], None]
    """Shows text at once."""
    notes: tuple[str, ...] = field(default=(), init=False)
    _placed: list[_Placed] = field(default_factory=list, init=False)
    _pending: _Placed | None = field(default=None, init=False)
    """The breakpoint that waits for torch to be loaded."""
    _placeholder: _Placed | None = field(default=None, init=False)
    """The breakpoint in the user's list for sites that do not exist yet."""
    _known_sites: set[tuple[int, Condition]] = field(default_factory=set, init=False)
    """(address, condition) of sites that had a breakpoint, which the user may have deleted."""
    _hits: Counter[tuple[int, Condition]] = field(default_factory=Counter, init=False)
    _open_calls: OpenCalls = field(default_factory=OpenCalls, init=False)
    _opening_traps: dict[int, Trap] = field(default_factory=dict, init=False)
    """Address of a lookup that begins a call whose end has a breakpoint → its trap."""

    def __post_init__(self) -> None:
        self._reports = _StopReports(self._open_session, self.request.why)
        self._matchers = [matcher(pattern) for pattern in self.request.op]

    def wants(self, name: str) -> bool:
        """True if a pattern of the request matches the operator's qualified name."""
        return any(matches(name) for matches in self._matchers)

    def show_line(self, text: str) -> None:
        """Show a line about dispatch-break itself. Raises OSError."""
        self._show(f"dispatch-break: {text}\n")

    @property
    def is_pending(self) -> bool:
        """True as long as torch is not loaded."""
        return self._pending is not None

    def alive(self) -> list[_Placed]:
        """The breakpoints that the user has not deleted."""
        own = (*self._placed, self._placeholder, self._pending)
        return [placed for placed in own if placed and placed.breakpoint.is_alive()]

    @property
    def hits(self) -> int:
        """Stops at these breakpoints, and reports of --continue."""
        return sum(self._hits.values())

    def report(self) -> RequestedBreakpoints:
        """The request and its breakpoints that were not deleted."""
        breakpoints = []
        for placed in self.alive():
            number, site = placed.breakpoint.number, placed.site
            if site:
                words = number, site.address, site.name, site.event, site.what
                condition = self._setter.text_of(site.condition) or None
                hits = self._hits[site.address, site.condition]
                breakpoints.append(PlacedBreakpoint(*words, condition=condition, hits=hits))
            else:
                place = REGISTER_SCHEMA_FUNCTION if placed.awaits else STEP_CALLBACKS_FUNCTION
                breakpoints.append(PlacedBreakpoint(number, None, None, None, place, placed.awaits or None))
        return RequestedBreakpoints(self.request, tuple(breakpoints))

    def resolve(self, session: Session) -> None:
        """Set the breakpoints when torch is loaded; operators that are missing are awaited. Raises UsageError,
        TargetError, LayoutError."""
        plan = BreakPlan(session, self._open_calls)
        missing = plan.missing(self.request.op)
        watch = self._watch_of(session)
        if missing and not watch.addresses:
            raise next(iter(missing.values()))  # a libtorch without symbols: its registration could not be seen
        if any(is_generated(name) and (name in missing or not name.isidentifier()) for name in self.request.op):
            self._watch_kernels(session)
        awaited = "" if self._add(plan) or missing else what_is_awaited(self.request)
        notes = [f"{error.what} ({error.why or error.help}): waiting until it is" for error in missing.values()]
        if awaited:
            notes.append(f"there is nothing to stop at yet: waiting until {awaited}")
        self.notes = (*notes, *plan.not_seen(self.request.where))
        if missing:
            awaited = f"{', '.join(missing)} is {'loaded' if all(map(is_generated, missing)) else 'registered'}"
        if awaited and not self._placeholder and watch.addresses:
            self._placeholder = _Placed(self._setter.set_placeholder(watch.addresses[0]), awaits=awaited)
        if self._pending:
            self._pending.breakpoint.delete_later()
            self._pending = None

    def needs_refresh(self, operator: int) -> bool:
        """Note that a matching operator (an OperatorEntry) was registered or got a kernel. True if there may be new
        sites: for "register" an operator has only one."""
        self._reports.knows_tables = False
        has_site = any(placed.site and placed.site.operator == operator for placed in self._placed)
        return not has_site or self.request.where != "register"

    def refresh(self, session: Session) -> None:
        """Add the new sites after a registration. Raises as resolve()."""
        self._reports.forget()
        plan = BreakPlan(session, self._open_calls)
        missing = plan.missing(self.request.op)
        if not self._add(plan) and not missing:
            try:
                awaited = what_is_awaited(self.request)
            except UsageError as error:
                self.show_line(error.what)
            else:
                if self._placeholder:
                    self._placeholder.awaits = awaited
                return
        if self._placeholder and not missing:
            self._placeholder.breakpoint.delete_later()
            self._placeholder = None

    def _add(self, plan: BreakPlan) -> bool:
        """Set breakpoints at the new sites of a plan; True if it has any site. Raises TargetError, UsageError."""
        sites = plan.sites(self.request)
        for site in sites:
            self._set(site)
            for opening in site.openings:
                if opening.address not in self._opening_traps:
                    trap = self._setter.set_trap(opening.address, partial(self._note_call, opening))
                    self._opening_traps[opening.address] = trap
        return bool(sites)

    def _note_call(self, opening: Opening, thread: StoppedThread) -> None:
        """Note the call that begins at a lookup, and set a breakpoint at its end."""
        try:
            operator = thread.register(opening.entry)
            sites = (placed.site for placed in self._placed if placed.site)
            name = next((site.name for site in sites if site.operator == operator), "")
            if not name:  # another operator's: no call of ours is open in this frame
                self._open_calls.end(thread, opening.frame)
                return
            self._open_calls.begin(thread, opening.frame, operator)
            if opening.jumps:
                # The function around the lookup may leave by a jump into the kernel: stop where it returns to.
                architecture = self._open_session().memory.architecture
                cfa = cfa_in(thread, opening.frame)
                returns_to = architecture.return_address(
                    lambda address, _: thread.word(address).to_bytes(8, "little"), cfa
                )
                frame = CfaRule(architecture.stack_pointer, offset=0, size=0)
                self._set(end_site(self._open_calls, operator, name, returns_to, "the end of its call", frame))
        except GdbextError as error:
            self.show_line(str(error))

    def _set(self, site: BreakSite) -> None:
        """Set a breakpoint at a site, unless there was one before."""
        key = site.address, site.condition
        if key in self._known_sites:
            return

        def report(thread: StoppedThread) -> None:
            """Show a stop; gdb calls this for each breakpoint at the address, even if its condition does not hold."""
            try:
                if holds(site.condition, thread):
                    self._hits[key] += 1
                    if site.frame:  # this site is the end of a call
                        self._open_calls.end(thread, site.frame)
                    self._show("\n".join(self._reports.lines(site, thread)) + "\n")
            except (GdbextError, OSError) as error:
                self.show_line(str(error))

        if self.request.continue_:
            breakpoint = self._setter.set_call(site.address, report)
        else:
            breakpoint = self._setter.set_stop(site.address, site.condition, report)
        self._placed.append(_Placed(breakpoint, site))
        self._known_sites.add(key)

    def wait(self) -> None:
        """Set the pending breakpoint that waits for torch. Raises TargetError."""
        self._placed = []
        self._known_sites.clear()
        self._hits.clear()
        if self._pending and self._pending.breakpoint.is_alive():
            return

        def torch_is_used() -> bool:
            """Set the real breakpoints at the first dispatch; True (stop) if that fails, so that the user sees it."""
            try:
                self.resolve(self._open_session())
                for note in self.notes:
                    self.show_line(note)
            except GdbextError as error:
                self.show_line(str(error))
                return True
            return False

        pending = self._setter.set_pending(STEP_CALLBACKS_FUNCTION, STEP_CALLBACKS.names[0], torch_is_used)
        self._pending = _Placed(pending)

    def suspend(self) -> None:
        """Delete the breakpoints at addresses after the program has exited, and wait for torch again. Raises
        TargetError."""
        self._reports.forget()
        if any(placed is not self._pending for placed in self.alive()):
            self.delete()
            self.wait()

    def switch_off(self) -> None:
        """Disable the breakpoints until the program exits; allowed while the debugger calls us."""
        for placed in self.alive():
            placed.breakpoint.switch_off()

    def delete(self) -> None:
        """Delete all breakpoints and traps of the request."""
        for placed in self.alive():
            placed.breakpoint.delete()
        for trap in self._opening_traps.values():
            trap.delete()
        self._opening_traps = {}
        self._open_calls = OpenCalls()
        self._placed, self._pending, self._placeholder = [], None, None


class BreakTable:
    """Adds, lists and deletes requests, and keeps them through all runs of the program."""

    def __init__(self, setter: BreakpointSetter, open_session: Callable[[], Session]) -> None:
        """``open_session`` opens a session of the stopped process, also while the debugger calls us."""
        self._breakpoints = self.setter = setter
        self.is_probed = False  # true if kernel probes stop the threads, not breakpoints
        self._open_session = open_session
        self._sets: list[BreakSet] = []
        self._watch: RegistrationWatch | None = None
        self._kernel_watch: KernelWatch | None = None
        setter.on_exit(self._suspend)

    def use_probes(self, wanted: bool) -> None:
        """Stop threads by kernel probes (True) or by breakpoints. Raises UsageError, ProbesRefused."""
        self._drop_deleted()
        if wanted == self.is_probed:
            return
        if self._sets:
            raise UsageError(
                f"probes and breakpoints cannot be mixed: there are {'probes' if self.is_probed else 'breakpoints'}",
                why="a breakpoint at the address of a probe is not noticed",
                help="dispatch-break --delete",
            )
        self.setter = self._breakpoints.by_probes() if wanted else self._breakpoints
        self.is_probed = wanted

    def add(self, request: BreakRequest, session: Session, show: Callable[[str], None]) -> BreakSet:
        """Set a request's breakpoints, or a pending one where torch cannot be read yet; ``show`` shows its stops.

        Raises UsageError, TargetError.
        """
        breaks = BreakSet(request, self.setter, self._open_session, self._watch_of, self._watch_kernels, show)
        try:
            try:
                is_readable = session.has_torch and bool(session.dispatcher.entries)
            except TargetError:
                is_readable = False
            if is_readable:
                breaks.resolve(session)
            else:
                breaks.wait()
            self._sets.append(breaks)
        except TargetError:
            breaks.delete()
            raise
        finally:
            self._drop_deleted()
        return breaks

    @property
    def hits(self) -> int:
        """Stops at the breakpoints of all requests, and reports of --continue."""
        return sum(breaks.hits for breaks in self._sets)

    def listed(self) -> tuple[RequestedBreakpoints, ...]:
        """Every request with its breakpoints, in the order in which they were made."""
        self._drop_deleted()
        return tuple(breaks.report() for breaks in self._sets)

    def delete(self, numbers: Sequence[int]) -> int:
        """Delete the breakpoints with these numbers (() for all), and return how many. Raises UsageError for an unknown
        number."""
        own = {placed.breakpoint.number: placed.breakpoint for breaks in self._sets for placed in breaks.alive()}
        wrong = [number for number in numbers if number not in own]
        if wrong:
            raise UsageError(f"breakpoint {wrong[0]} is not one of dispatch-break's", help="dispatch-break --list")
        chosen = numbers or list(own)
        for number in chosen:
            own[number].delete()
        self._drop_deleted()
        return len(chosen)

    def _drop_deleted(self) -> None:
        """Drop the requests whose breakpoints were all deleted, and after the last one the watches."""
        self._sets = [breaks for breaks in self._sets if breaks.alive()]
        if not self._sets:
            self._end_watch()

    def _watch_of(self, session: Session) -> RegistrationWatch:
        """The watch that all requests share. Raises TargetError."""

        def wanted(name: str) -> bool:
            return any(breaks.wants(name) for breaks in self._sets)

        def registered(operator: int) -> None:
            self._refresh([breaks for breaks in self._sets if breaks.needs_refresh(operator)])

        def ending() -> None:
            """Disable "register" when the process ends: from here on the tables are only destroyed."""
            for breaks in self._sets:
                if breaks.request.where == "register":
                    breaks.switch_off()

        if not self._watch:
            self._watch = RegistrationWatch(session, self.setter, wanted, registered, ending, self._show_error)
        return self._watch

    def _watch_kernels(self, session: Session) -> None:
        """Watch for kernels that Inductor loads. Raises UsageError where that cannot be seen, TargetError."""
        if not self._kernel_watch:
            watch = KernelWatch(session, self.setter, lambda: self._refresh(self._sets), self._show_error)
            if not watch.works:
                watch.close()
                raise UsageError("gdbext cannot see when this torch loads a kernel", help="compile it first")
            self._kernel_watch = watch

    def _end_watch(self) -> None:
        """Stop watching for registrations and for generated kernels."""
        if self._kernel_watch:
            self._kernel_watch.close()
            self._kernel_watch = None
        if self._watch:
            self._watch.close()
            self._watch = None

    def _refresh(self, sets: Sequence[BreakSet]) -> None:
        """Re-plan the breakpoints of ``sets`` after a registration or library load; afterwards drop sets whose
        breakpoints were deleted."""
        active = [breaks for breaks in sets if not breaks.is_pending and breaks.alive()]
        if active:
            session = self._open_session()
            for breaks in active:
                breaks.refresh(session)
        self.setter.call_soon(self._drop_deleted)

    def _show_error(self, error: Exception) -> None:
        for breaks in self._sets[:1]:
            breaks.show_line(str(error))

    def _suspend(self) -> None:
        """Wait for the next run when the process has ended."""
        self._end_watch()
        for breaks in self._sets:
            breaks.suspend()
