"""All requests of dispatch-break in one debugger."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gdbext.errors import TargetError, UsageError
from gdbext.hosts.resume.registrations import KernelWatch, RegistrationWatch
from gdbext.tools.breaks.break_set import BreakSet

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.hosts.resume.breakpoint_setter import BreakpointSetter
    from gdbext.tools.breaks.breaks_section import BreakRequest, RequestedBreakpoints


class BreakTable:
    """Adds, lists and deletes requests, and keeps them through all runs of the program."""

    def __init__(self, setter: BreakpointSetter, open_session: Callable[[], Session]) -> None:
        """``open_session`` gives a fresh session of the stopped process, also while the debugger calls us."""
        self._setter = setter
        self._open_session = open_session
        self._sets: list[BreakSet] = []
        self._watch: RegistrationWatch | None = None
        self._kernel_watch: KernelWatch | None = None
        setter.on_exit(self._ended)

    @property
    def note_on_calls(self) -> str:
        """The note that the user must read on breakpoints that report and go on; "" for none."""
        return self._setter.note_on_calls

    def add(self, request: BreakRequest, session: Session, show: Callable[[str], None]) -> BreakSet:
        """Set a request's breakpoints, or a pending one where torch cannot be read yet; ``show`` shows its stops.

        Raises UsageError, TargetError.
        """
        found = BreakSet(request, self._setter, self._open_session, self._watch_of, self._watch_kernels, show)
        try:
            if _readable(session):
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
        if self._watch is None:
            self._watch = RegistrationWatch(
                session, self._setter, self._wanted, self._registered, self._ending, self._failed
            )
        return self._watch

    def _watch_kernels(self, session: Session) -> None:
        """Look for kernels that Inductor loads. Raises UsageError where that cannot be seen, TargetError."""
        if self._kernel_watch is None:
            watch = KernelWatch(session, self._setter, self._kernels_came, self._failed)
            if not watch.works:
                watch.close()
                raise UsageError("gdbext cannot see when this torch loads a kernel", help="compile it first")
            self._kernel_watch = watch

    def _end_watch(self) -> None:
        if self._kernel_watch is not None:
            self._kernel_watch.close()
            self._kernel_watch = None
        if self._watch is not None:
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


def _readable(session: Session) -> bool:
    if not session.has_torch:
        return False
    try:
        return bool(session.dispatcher.entries)
    except TargetError:
        return False
