"""dispatch-break's breakpoints in gdb: ordinary ones, in ``info breakpoints``, with conditions that gdb evaluates.

They are set by address, so that gdb's own symbols are not needed. Before torch is loaded, and again when the program
has ended, a pending breakpoint on ``at::getStepCallbacksUnlessEmpty`` stands for them: gdb finds it when the library
is loaded, and the first dispatch of any operator reaches it when all operators of torch are registered. Others may be
registered at any time: ``Watch`` sees them.
"""

from __future__ import annotations

import os
from typing import Any

import gdb

from gdbext.debuggers.gdb.registration_watch import Watch
from gdbext.debuggers.gdb.target import GdbTarget
from gdbext.errors import GdbextError, TargetError, UsageError
from gdbext.inspection.session import Session
from gdbext.live.breakpoints.break_plan import BreakPlan, BreakRequest, BreakSite
from gdbext.live.breakpoints.stop_report import stop_lines
from gdbext.live.hooks import control as live_control
from gdbext.torch.registry.operator_names import matcher

PENDING_AT = "at::getStepCallbacksUnlessEmpty"
_WORD = (1 << 64) - 1


class GdbBreak(gdb.Breakpoint):  # type: ignore[misc]
    """A breakpoint at a site, with its condition."""

    def __init__(self, site: BreakSite) -> None:
        super().__init__(f"*{site.address:#x}")
        self.site = site
        if site.condition:
            self.condition = site.condition


class GdbPrint(gdb.Breakpoint):  # type: ignore[misc]
    """The same for --continue: tells and goes on. gdb allows no condition beside a stop()."""

    def __init__(self, site: BreakSite) -> None:
        super().__init__(f"*{site.address:#x}")
        self.site = site

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        try:
            if not self.site.condition or int(gdb.parse_and_eval(self.site.condition)):
                report_stop(self.site)
        except (gdb.error, GdbextError, OSError) as error:
            tell(f"dispatch-break: {error}\n")
        return False


class GdbPending(gdb.Breakpoint):  # type: ignore[misc]
    """Stands for a request until the dispatcher can be read."""

    def __init__(self, request: BreakSet) -> None:
        super().__init__(PENDING_AT)
        self._request = request

    def stop(self) -> bool:
        """The first dispatch: set the real ones."""
        try:
            self._request.resolve(_session())
            for note in self._request.notes:
                tell(f"dispatch-break: {note}\n")
        except (GdbextError, gdb.error) as error:
            tell(f"dispatch-break: {error}\n")
            return True
        return False


class GdbUnregistered(gdb.Breakpoint):  # type: ignore[misc]
    """Stands, where operators are defined, for what a request means and is not registered yet. Watch does the work."""

    def __init__(self, address: int, awaits: str) -> None:
        super().__init__(f"*{address:#x}")
        self.awaits = awaits

    def stop(self) -> bool:
        """Called by gdb at each hit."""
        return False


class BreakSet:
    """The breakpoints of one request, through all runs of the program. ``notes`` is what the user must know."""

    def __init__(self, request: BreakRequest) -> None:
        self.request = request
        self.breakpoints: list[Any] = []
        self.pending: GdbPending | None = None
        self.waiting: GdbUnregistered | None = None
        self.notes: list[str] = []
        self._matchers = [matcher(pattern) for pattern in request.patterns]
        self._known: set[tuple[int, str]] = set()

    def wants(self, name: str) -> bool:
        """The request means the operator of that qualified name."""
        return any(matches(name) for matches in self._matchers)

    def resolve(self, session: Session) -> None:
        """Set the breakpoints, those for operators that do not exist yet when they do.

        Raises UsageError, TargetError, LayoutError.
        """
        plan = BreakPlan(session)
        missing = plan.missing(self.request.patterns)
        watch = _watch(session)
        if missing and not watch.addresses:
            raise missing[0]  # a libtorch without symbols: it could not be seen when it is registered
        awaited = "" if self._add(plan) or missing else self._absent()
        self.notes = [f"{error.what} ({error.help}): waiting until it is" for error in missing]
        if awaited:
            self.notes.append(f"there is nothing to stop at yet: waiting until {awaited}")
        if missing:
            names = [each for each in self.request.patterns if any(repr(each) in error.what for error in missing)]
            awaited = f"{', '.join(names)} is registered"
        if awaited and self.waiting is None and watch.addresses:
            self.waiting = GdbUnregistered(watch.addresses[0], awaited)
        self._drop_pending()

    def refresh(self, session: Session) -> None:
        """Something that the request means was registered: add what there is to stop at now. Raises as resolve()."""
        plan = BreakPlan(session)
        missing = plan.missing(self.request.patterns)
        if not self._add(plan) and not missing:
            try:
                awaited = self._absent()
            except UsageError as error:
                tell(f"dispatch-break: {error.what}\n")
            else:
                if self.waiting is not None:
                    self.waiting.awaits = awaited
                return
        if self.waiting is not None and not missing:
            _delete_later(self.waiting)
            self.waiting = None

    def _add(self, plan: BreakPlan) -> bool:
        """Set breakpoints at the sites that are new; whether there is any site. Raises TargetError, UsageError."""
        sites = plan.sites(self.request)
        kind = GdbPrint if self.request.go_on else GdbBreak
        for site in sites:
            if (site.address, site.condition) in self._known:
                continue  # also where the user has deleted it
            try:
                self.breakpoints.append(kind(site))
            except gdb.error as error:
                raise TargetError(f"gdb cannot set the breakpoint: {error}") from error
            self._known.add((site.address, site.condition))
        return bool(sites)

    def _absent(self) -> str:
        """What must be registered so that there is something to stop at. Raises UsageError: nothing would help."""
        request = self.request
        if request.where in ("kernel", "boxed"):
            key = f" for {request.key}" if request.key else ""
            return f"a kernel of {', '.join(request.patterns)}{key} is registered"
        raise UsageError(
            f"nothing to stop at: {', '.join(request.patterns)} has no {request.where} of its own",
            help="dispatch-break boxed OP or dispatch-break kernel OP work for every operator",
        )

    def wait(self) -> None:
        """Set the pending one."""
        self.breakpoints = []
        self._known.clear()
        if self.pending is None or not self.pending.is_valid():
            self.pending = GdbPending(self)

    def suspend(self) -> None:
        """The program has ended: addresses mean nothing any more."""
        if any(each.is_valid() for each in (*self.breakpoints, self.waiting) if each is not None):
            self.delete()
            self.wait()

    def delete(self) -> None:
        """Take everything away."""
        for each in self.alive():
            each.delete()
        self.breakpoints, self.pending, self.waiting = [], None, None

    def alive(self) -> list[Any]:
        """What the user has not deleted."""
        ours = (*self.breakpoints, self.waiting, self.pending)
        return [each for each in ours if each is not None and each.is_valid()]

    def _drop_pending(self) -> None:
        if self.pending is not None:
            _delete_later(self.pending)
            self.pending = None


def _delete_later(one: Any) -> None:
    """It may be the one that gdb is asking right now."""
    if one.is_valid():
        one.enabled = False
        gdb.post_event(lambda: one.delete() if one.is_valid() else None)


_sets: list[BreakSet] = []
_connected: list[bool] = []
_watches: list[Watch] = []


def add(request: BreakRequest, session: Session) -> BreakSet:
    """Set a request's breakpoints, or a pending one where torch cannot be read yet. Raises UsageError, TargetError."""
    found = BreakSet(request)
    try:
        if _readable(session):
            found.resolve(session)
        else:
            found.wait()
        _sets.append(found)
    except TargetError:
        found.delete()
        raise
    finally:
        _forget()
    if not _connected:
        _connected.append(True)
        gdb.events.stop.connect(_stopped)
        gdb.events.exited.connect(_exited)
    return found


def listed() -> list[tuple[BreakRequest, list[dict[str, Any]]]]:
    """Every request with its breakpoints: number, place, hits, whether it is pending."""
    _forget()
    return [(each.request, [_document(one) for one in each.alive()]) for each in _sets]


def delete(numbers: list[int]) -> int:
    """Delete these breakpoints, all for none; how many were. Raises UsageError for a number that is not ours."""
    ours = {one.number: one for each in _sets for one in each.alive()}
    wrong = [number for number in numbers if number not in ours]
    if wrong:
        raise UsageError(f"breakpoint {wrong[0]} is none of dispatch-break's", help="dispatch-break --list")
    chosen = numbers or list(ours)
    for number in chosen:
        ours[number].delete()
    _forget()
    return len(chosen)


def _forget() -> None:
    """Drop the requests whose breakpoints were all deleted, and after the last one what watches for them."""
    _sets[:] = [each for each in _sets if each.alive()]
    if not _sets:
        _end_watch()


def _watch(session: Session) -> Watch:
    """The one watch for all requests. Raises TargetError."""
    if not _watches:
        try:
            _watches.append(Watch(session, _wanted, _refresh, _failed))
        except gdb.error as error:
            raise TargetError(f"gdb cannot set the breakpoint: {error}") from error
    return _watches[0]


def _end_watch() -> None:
    for watch in _watches:
        watch.close()
    _watches.clear()


def _wanted(name: str) -> bool:
    return any(each.wants(name) for each in _sets)


def _refresh() -> None:
    """A registration that a request wants is done."""
    session = _session()
    for each in _sets:
        if each.pending is None and each.alive():
            each.refresh(session)
    gdb.post_event(_forget)


def _failed(error: Exception) -> None:
    tell(f"dispatch-break: {error}\n")


def _document(one: Any) -> dict[str, Any]:
    site = getattr(one, "site", None)
    awaits = getattr(one, "awaits", None)
    return {
        "number": one.number,
        "pending": site is None,
        "address": f"{site.address:#x}" if site else None,
        "op": site.name if site else None,
        "event": site.event if site else None,
        "place": site.what if site else PENDING_AT if awaits is None else "c10::impl::OperatorEntry::registerSchema",
        "waits_for": awaits,
        "condition": (site.condition if site else "") or None,
        "hits": one.hit_count,
    }


def report_stop(site: BreakSite) -> None:
    """Tell about the stop that the selected thread is at. Raises gdb.error, OSError."""
    bits = int(gdb.parse_and_eval(site.keyset)) & _WORD if site.keyset else None
    tid = gdb.selected_thread().ptid[1]
    tell("\n".join(stop_lines(_session(), site, bits, tid, _register)) + "\n")


def _register(name: str) -> int:
    return int(gdb.parse_and_eval(f"${name}")) & _WORD


def tell(text: str) -> None:
    """To gdb's output, or the launcher's. Raises OSError."""
    if live_control.alone:
        os.write(live_control.output, text.encode("utf-8", "backslashreplace"))
    else:
        gdb.write(text)


def _session() -> Session:
    return Session(GdbTarget(gdb.selected_inferior()))


def _readable(session: Session) -> bool:
    if not session.has_torch:
        return False
    try:
        return bool(session.dispatcher.entries)
    except TargetError:
        return False


def _stopped(event: Any) -> None:
    for each in getattr(event, "breakpoints", ()):
        if isinstance(each, GdbBreak):
            try:
                report_stop(each.site)
            except (gdb.error, GdbextError, OSError) as error:
                tell(f"dispatch-break: {error}\n")


def _exited(event: Any) -> None:
    if any(other.pid for other in gdb.inferiors() if other.num != event.inferior.num):
        return  # gdb follows a forked child, whose addresses are the same, and lets the parent go
    _end_watch()
    for each in _sets:
        each.suspend()
