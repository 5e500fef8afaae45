"""The breakpoints of dispatch-break: those of one request, through all runs of the program, and all requests.

Before torch is loaded, and again when the program has ended, a pending breakpoint on
``at::getStepCallbacksUnlessEmpty`` stands for them: the debugger finds it when the library is loaded, and the first
dispatch of any operator reaches it when all operators of torch are registered. Others may be registered at any time;
the registration watch notices them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gdbext.engine.unwind.frame_steps import CfaRule
from gdbext.errors import GdbextError, TargetError, UsageError
from gdbext.live.breakpoint_setter import holds
from gdbext.live.operator_functions import CallOpenings, OpenCalls, cfa_in
from gdbext.live.registrations import KernelWatch, RegistrationWatch, is_generated
from gdbext.tools.breaks.break_plan import BreakPlan, BreakSite, Placed, end_site, is_readable, what_is_awaited
from gdbext.tools.breaks.breaks_section import BreakRequest, PlacedBreakpoint, RequestedBreakpoints
from gdbext.tools.breaks.stop_report import StopReports
from gdbext.torch.assumed_symbols import REGISTER_SCHEMA_FUNCTION, STEP_CALLBACKS, STEP_CALLBACKS_FUNCTION
from gdbext.torch.registry.operator_names import matcher

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.live.breakpoint_setter import (
        Breakpoint,
        BreakpointSetter,
        Condition,
        Reached,
        StoppedThread,
    )
    from gdbext.live.operator_functions import Opening


class BreakSet:
    """``notes`` is what the user must know."""

    def __init__(
        self,
        request: BreakRequest,
        setter: BreakpointSetter,
        open_session: Callable[[], Session],
        watch_of: Callable[[Session], RegistrationWatch],
        watch_kernels: Callable[[Session], None],
        show: Callable[[str], None],
    ) -> None:
        """``open_session`` gives a fresh session of the stopped process, ``watch_of`` the watch that all requests
        share, ``watch_kernels`` begins to watch for generated kernels; ``show`` shows text at once."""
        self.request = request
        self.notes: tuple[str, ...] = ()
        self._setter = setter
        self._open_session = open_session
        self._reports = StopReports(open_session, request.why)
        self._watch_of = watch_of
        self._watch_kernels = watch_kernels
        self._show = show
        self._placed: list[Placed] = []
        self._pending: Placed | None = None
        self._waiting: Placed | None = None
        self._matchers = [matcher(pattern) for pattern in request.op]
        self._known: set[tuple[int, Condition]] = set()
        self._hits: Counter[tuple[int, Condition]] = Counter()
        self._open_calls = OpenCalls()
        self._openings = CallOpenings(setter, self._opens)

    def wants(self, name: str) -> bool:
        """The request means the operator of that qualified name."""
        return any(matches(name) for matches in self._matchers)

    def show_line(self, text: str) -> None:
        """A line about dispatch-break itself. Raises OSError."""
        self._show(f"dispatch-break: {text}\n")

    @property
    def is_pending(self) -> bool:
        """True while it waits for torch to be loaded."""
        return self._pending is not None

    def alive(self) -> list[Placed]:
        """The breakpoints that the user has not deleted."""
        ours = (*self._placed, self._waiting, self._pending)
        return [each for each in ours if each and each.breakpoint.is_alive()]

    @property
    def hits(self) -> int:
        """Stops at these breakpoints, and reports of --continue."""
        return sum(self._hits.values())

    def report(self) -> RequestedBreakpoints:
        """The request with its breakpoints."""
        return RequestedBreakpoints(self.request, tuple(self._report(each) for each in self.alive()))

    def _report(self, placed: Placed) -> PlacedBreakpoint:
        one, site = placed.breakpoint, placed.site
        if not site:
            place = REGISTER_SCHEMA_FUNCTION if placed.awaits else STEP_CALLBACKS_FUNCTION
            return PlacedBreakpoint(one.number, None, None, None, place, placed.awaits or None)
        return PlacedBreakpoint(
            one.number,
            site.address,
            site.name,
            site.event,
            site.what,
            condition=self._setter.text_of(site.condition) or None,
            hits=self._hits[site.address, site.condition],
        )

    # --- setting them ----------------------------------------------------------------------------

    def resolve(self, session: Session) -> None:
        """Set the breakpoints, those for operators that do not exist yet when they do.

        Raises UsageError, TargetError, LayoutError.
        """
        plan = BreakPlan(session, self._open_calls)
        missing = plan.missing(self.request.op)
        watch = self._watch_of(session)
        if missing and not watch.addresses:
            raise next(iter(missing.values()))  # a libtorch without symbols: it could not be seen when it is registered
        if any(is_generated(each) and (each in missing or not each.isidentifier()) for each in self.request.op):
            self._watch_kernels(session)
        awaited = "" if self._add(plan) or missing else what_is_awaited(self.request)
        notes = [f"{error.what} ({error.why or error.help}): waiting until it is" for error in missing.values()]
        if awaited:
            notes.append(f"there is nothing to stop at yet: waiting until {awaited}")
        self.notes = (*notes, *plan.not_seen(self.request.where))
        if missing:
            awaited = f"{', '.join(missing)} is {'loaded' if all(map(is_generated, missing)) else 'registered'}"
        if awaited and not self._waiting and watch.addresses:
            self._waiting = Placed(self._setter.set_placeholder(watch.addresses[0]), awaits=awaited)
        if self._pending:
            self._pending.breakpoint.delete_later()
            self._pending = None

    def registered(self, operator: int) -> bool:
        """An operator that the request means was registered or got a kernel; whether there may be more to stop at.

        The computation of table entries is one place, whatever kernels an operator has.
        """
        self._reports.forget_tables()
        known = any(each.site and each.site.operator == operator for each in self._placed)
        return not known or self.request.where != "register"

    def refresh(self, session: Session) -> None:
        """Something that the request means was registered: add what there is to stop at now. Raises as resolve()."""
        self._reports.forget()
        plan = BreakPlan(session, self._open_calls)
        missing = plan.missing(self.request.op)
        if not self._add(plan) and not missing:
            try:
                awaited = what_is_awaited(self.request)
            except UsageError as error:
                self.show_line(error.what)
            else:
                if self._waiting:
                    self._waiting.awaits = awaited
                return
        if self._waiting and not missing:
            self._waiting.breakpoint.delete_later()
            self._waiting = None

    def _add(self, plan: BreakPlan) -> bool:
        """Set breakpoints at the sites that are new; whether there is any site. Raises TargetError, UsageError."""
        sites = plan.sites(self.request)
        for site in sites:
            if (site.address, site.condition) not in self._known:  # known, too, is what the user has deleted
                self._placed.append(Placed(self._set(site), site))
                self._known.add((site.address, site.condition))
            self._openings.watch(site.openings)
        return bool(sites)

    def _opens(self, thread: StoppedThread, opening: Opening) -> None:
        """Notes at a lookup which call begins there."""
        try:
            operator = thread.register(opening.entry)
            name = next((one.site.name for one in self._placed if one.site and one.site.operator == operator), "")
            self._open_calls.begins(thread, opening.frame, operator, bool(name))
            if name and opening.jumps:
                self._stop_behind(thread, opening, operator, name)
        except GdbextError as error:
            self.show_line(str(error))

    def _stop_behind(self, thread: StoppedThread, opening: Opening, operator: int, name: str) -> None:
        """Stop where the function returns to around a lookup: it may leave by a jump into the kernel."""
        architecture = self._open_session().memory.architecture
        cfa = cfa_in(thread, opening.frame)
        behind = architecture.return_address(lambda address, _: thread.word(address).to_bytes(8, "little"), cfa)
        frame = CfaRule(architecture.stack_pointer, 0, 0)
        site = end_site(self._open_calls, operator, name, behind, "the end of its call", frame)
        if (site.address, site.condition) not in self._known:
            self._placed.append(Placed(self._set(site), site))
            self._known.add((site.address, site.condition))

    def _set(self, site: BreakSite) -> Breakpoint:
        if self.request.continue_:
            return self._setter.set_call(site.address, self._reporter(site))
        return self._setter.set_stop(site.address, site.condition, self._reporter(site))

    def _reporter(self, site: BreakSite) -> Reached:
        """Shows a stop; gdb calls it for each breakpoint at the address, also where the condition does not hold."""

        def report(thread: StoppedThread) -> None:
            try:
                if holds(site.condition, thread):
                    self._hits[site.address, site.condition] += 1
                    if site.frame:
                        self._open_calls.ends(thread, site.frame)
                    self._show("\n".join(self._reports.lines(site, thread)) + "\n")
            except (GdbextError, OSError) as error:
                self.show_line(str(error))

        return report

    # --- through the runs of a program -----------------------------------------------------------

    def wait(self) -> None:
        """Set the pending one. Raises TargetError."""
        self._placed = []
        self._known.clear()
        self._hits.clear()
        if not self._pending or not self._pending.breakpoint.is_alive():
            function, symbol = STEP_CALLBACKS_FUNCTION, STEP_CALLBACKS.names[0]
            self._pending = Placed(self._setter.set_pending(function, symbol, self._torch_is_used))

    def _torch_is_used(self) -> bool:
        """The first dispatch: set the real ones; True where that fails, so that the user sees it."""
        try:
            self.resolve(self._open_session())
            for note in self.notes:
                self.show_line(note)
        except GdbextError as error:
            self.show_line(str(error))
            return True
        return False

    def suspend(self) -> None:
        """The program has ended: addresses mean nothing any more. Raises TargetError."""
        self._reports.forget()
        if any(each is not self._pending for each in self.alive()):
            self.delete()
            self.wait()

    def switch_off(self) -> None:
        """Disable it until the program has ended; the debugger may be calling."""
        for each in self.alive():
            each.breakpoint.switch_off()

    def delete(self) -> None:
        """Delete all breakpoints of the request."""
        for each in self.alive():
            each.breakpoint.delete()
        self._openings.close()
        self._open_calls = OpenCalls()
        self._placed, self._pending, self._waiting = [], None, None


class BreakTable:
    """Adds, lists and deletes requests, and keeps them through all runs of the program."""

    def __init__(self, setter: BreakpointSetter, open_session: Callable[[], Session]) -> None:
        """``open_session`` gives a fresh session of the stopped process, also while the debugger calls us."""
        self._breakpoints = self._setter = setter
        self.is_probed = False
        """Kernel probes stop the threads, not breakpoints."""
        self._open_session = open_session
        self._sets: list[BreakSet] = []
        self._watch: RegistrationWatch | None = None
        self._kernel_watch: KernelWatch | None = None
        setter.on_exit(self._ended)

    def use_probes(self, wanted: bool) -> None:
        """Have kernel probes stop the threads, or breakpoints. Raises UsageError, ProbesRefused."""
        self._forget()
        if wanted == self.is_probed:
            return
        if self._sets:
            raise UsageError(
                f"what is set stops by {'probes' if self.is_probed else 'breakpoints'}: both at once are not possible",
                why="breakpoints are not seen at the places of probes",
                help="dispatch-break --delete",
            )
        self._setter = self._breakpoints.by_probes() if wanted else self._breakpoints
        self.is_probed = wanted

    def notes_of_debugger(self, go_on: bool) -> tuple[str, ...]:
        """The notes that the user must read before he lets the process run; ``go_on``: breakpoints report and go
        on."""
        return self._setter.notes(go_on)

    def add(self, request: BreakRequest, session: Session, show: Callable[[str], None]) -> BreakSet:
        """Set a request's breakpoints, or a pending one where torch cannot be read yet; ``show`` shows its stops.

        Raises UsageError, TargetError.
        """
        found = BreakSet(request, self._setter, self._open_session, self._watch_of, self._watch_kernels, show)
        try:
            if is_readable(session):
                found.resolve(session)
            else:
                found.wait()
            self._sets.append(found)
        except TargetError:
            found.delete()
            raise
        finally:
            self._forget()
        return found

    @property
    def hits(self) -> int:
        """Stops at the breakpoints of all requests, and reports of --continue."""
        return sum(each.hits for each in self._sets)

    def listed(self) -> tuple[RequestedBreakpoints, ...]:
        """Every request with its breakpoints, in the order in which they were made."""
        self._forget()
        return tuple(each.report() for each in self._sets)

    def delete(self, numbers: Sequence[int]) -> int:
        """Delete these breakpoints, all for none; how many were. Raises UsageError for a number that is not ours."""
        ours = {one.breakpoint.number: one.breakpoint for each in self._sets for one in each.alive()}
        wrong = [number for number in numbers if number not in ours]
        if wrong:
            raise UsageError(f"breakpoint {wrong[0]} is not one of dispatch-break's", help="dispatch-break --list")
        chosen = numbers or list(ours)
        for number in chosen:
            ours[number].delete()
        self._forget()
        return len(chosen)

    def _forget(self) -> None:
        """Drop the requests whose breakpoints were all deleted, and after the last one what watches for them."""
        self._sets = [each for each in self._sets if each.alive()]
        if not self._sets:
            self._end_watch()

    # --- registrations ---------------------------------------------------------------------------

    def _watch_of(self, session: Session) -> RegistrationWatch:
        """The one watch for all requests. Raises TargetError."""
        if not self._watch:
            self._watch = RegistrationWatch(
                session, self._setter, self._wanted, self._registered, self._ending, self._failed
            )
        return self._watch

    def _watch_kernels(self, session: Session) -> None:
        """Look for kernels that Inductor loads. Raises UsageError where that cannot be seen, TargetError."""
        if not self._kernel_watch:
            watch = KernelWatch(session, self._setter, self._kernels_came, self._failed)
            if not watch.works:
                watch.close()
                raise UsageError("gdbext cannot see when this torch loads a kernel", help="compile it first")
            self._kernel_watch = watch

    def _end_watch(self) -> None:
        if self._kernel_watch:
            self._kernel_watch.close()
            self._kernel_watch = None
        if self._watch:
            self._watch.close()
            self._watch = None

    def _wanted(self, name: str) -> bool:
        return any(each.wants(name) for each in self._sets)

    def _registered(self, operator: int) -> None:
        """An operator that a request wants is registered or has got a kernel."""
        self._refresh([each for each in self._sets if each.registered(operator)])

    def _kernels_came(self) -> None:
        self._refresh(self._sets)

    def _refresh(self, sets: Sequence[BreakSet]) -> None:
        """There may be more to stop at for these."""
        concerned = [each for each in sets if not each.is_pending and each.alive()]
        if concerned:
            session = self._open_session()
            for each in concerned:
                each.refresh(session)
        self._setter.call_soon(self._forget)

    def _ending(self) -> None:
        """Note that the process ends: from here on the tables are only taken apart."""
        for each in self._sets:
            if each.request.where == "register":
                each.switch_off()

    def _failed(self, error: Exception) -> None:
        for each in self._sets[:1]:
            each.show_line(str(error))

    def _ended(self) -> None:
        """Note that the process has ended."""
        self._end_watch()
        for each in self._sets:
            each.suspend()
