"""dispatch-values: places the hooks, lets the process run, and says why that ended.

The operators whose values are watched: at which places each is seen, also when it is registered later.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdbext.diagnosis.report import Ending, EndingKind, TargetReport
from gdbext.diagnosis.reporting import report_target
from gdbext.errors import UsageError
from gdbext.live.all_calls import AllCalls
from gdbext.live.dispatch_description import Describer
from gdbext.live.host import RunControl
from gdbext.live.operator_functions import OperatorFunctions
from gdbext.live.registrations import definition_hooks
from gdbext.live.timed_run import SilenceNotice
from gdbext.live.waiting import torch_session
from gdbext.render import escape
from gdbext.tools.values.compiled_code_watch import CompiledCodeWatch, is_compiled
from gdbext.tools.values.value_watch import ValueRequest, ValueSink, ValueWatch
from gdbext.torch.assumed_symbols import STEP_CALLBACKS
from gdbext.torch.registry.operator_names import matcher
from gdbext.torch.stack.roles import classify

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.torch.registry import Operator

_NAMES_SHOWN = 8


class WatchedOperators:
    """Places the hooks of one watch. An operator without functions of its own is seen where the dispatcher's
    ``callBoxed`` calls kernels, and at the function that all Python kernels share: all boxed calls stop there. Boxed
    entries of its own kernels would not do: most extensions' operators are called through autograd's fallback first."""

    def __init__(self, session: Session, control: RunControl, watch: ValueWatch, note: Callable[[str], None]) -> None:
        """``note`` gets what the user must know at once."""
        self._session = session
        self._control = control
        self._watch = watch
        self._note = note
        self._functions = OperatorFunctions(session)
        self._all_calls = AllCalls(session, self._functions)
        self._known: set[int] = set()
        self._boxed: dict[int, Operator] = {}
        """Functions that only boxed calls show, by address."""
        self._sees_boxed_calls = False
        self._returns_to_call: dict[int, bool] = {}

    def everything(self) -> None:
        """A watch of every operator. Raises TargetError."""
        self._watch.everything(self._all_calls.lookups())

    def place(self, patterns: Sequence[str]) -> None:
        """Those that the patterns mean, now or later. Raises UsageError for what cannot be seen, TargetError."""
        if not patterns:
            return
        dispatcher, missing = self._session.dispatcher, []
        for pattern in patterns:
            found = dispatcher.find(pattern)
            for operator in found:
                self._add(operator)
            if not found:
                missing.append(dispatcher.unknown(pattern))
        if not self._watch_definitions(patterns) and missing:
            raise missing[0]
        for error in missing:
            self._note(f"{error} ({error.help}): waiting for it")
        if self._boxed:
            self._say_boxed()

    def _watch_definitions(self, patterns: Sequence[str]) -> bool:
        """Watch definitions, so that an operator that is registered later is seen; False where that cannot be."""
        matchers = [matcher(pattern) for pattern in patterns]

        def defined(operator: Operator) -> None:
            if any(matches(operator.qualified) for matches in matchers):
                self._add(operator)

        hooks = definition_hooks(self._session, self._functions, defined)
        for spec in hooks:
            self._control.place(spec)
        return bool(hooks)

    def _add(self, operator: Operator) -> None:
        if operator.address in self._known:
            return
        self._known.add(operator.address)
        own = self._functions.functions(operator)
        for function in own:
            self._watch.function(function)
        if not own:
            if not self._boxed:
                self._stop_at_boxed_calls()
            self._boxed[operator.address] = operator
        if own or not self._sees_boxed_calls:
            for entry in self._functions.boxed_entries(operator):
                self._watch.boxed_entry(entry, self._is_boxed_call)

    def _stop_at_boxed_calls(self) -> None:
        before = self._watch.hooks
        self._watch.boxed_calls(self._all_calls.boxed_calls(), self._boxed)
        self._sees_boxed_calls = self._watch.hooks > before
        self._watch.own_lookups(self._all_calls, self._boxed)
        for text in self._all_calls.not_seen():
            self._note(f"{text}: what they call is not watched")
        self._watch.python_kernels(self._functions.python_entries(), self._boxed, self._is_boxed_call)

    def _say_boxed(self) -> None:
        names = ", ".join([each.qualified for each in self._boxed.values()][:_NAMES_SHOWN])
        if self._sees_boxed_calls:
            self._note(f"no functions of their own: {names}: every boxed call of any operator is stopped at")
            return
        what = f"calls of {names} cannot be watched"
        why = "they have no functions of their own, and callBoxed was not found"
        if not self._watch.hooks:
            raise UsageError(what, why=why, help="watch an operator that they call")
        self._note(f"{what}: {why}")

    def _is_boxed_call(self, returns_to: int) -> bool:
        """The function that is returned to is ``Dispatcher::callBoxed``, or has it inlined."""
        if returns_to not in self._returns_to_call:
            function = self._session.symbolizer.function(returns_to - 1)
            role = classify(function)
            wanted = STEP_CALLBACKS.address(self._session.symbolizer)
            self._returns_to_call[returns_to] = bool(
                function
                and not role.role.is_layer
                and (
                    role.event == "callBoxed" or (not role.role.opens and wanted in self._functions.calls_of(function))
                )
            )
        return self._returns_to_call[returns_to]


def _instead_of(request: ValueRequest) -> str:
    """The words for what threads did that ran without a call to look at."""
    limited = request.tid or request.key or request.kernel
    limits = ", as asked for (--thread, --key, --kernel)" if limited else ""
    called = f"did not call {escape(' '.join(request.patterns))}" if request.patterns else "called no operator"
    return f"{called}{limits}: dispatch-top counts what they do"


MakeSink = Callable[["Session"], ValueSink]


@dataclass(frozen=True)
class WatchResult:
    """The facts that are known when it is over."""

    target: TargetReport
    count: int
    ending: Ending
    notes: tuple[str, ...]


class Watching:
    """The state of one run of dispatch-values."""

    def __init__(
        self, session: Session, control: RunControl, request: ValueRequest, notify: Callable[[str], None]
    ) -> None:
        """``notify`` shows at once what the user must know before the end."""
        self._notify = notify
        self._session = session
        self._control = control
        self._request = request
        self._notes: list[str] = []

    def run(self, make_sink: MakeSink) -> WatchResult:
        """Watch until something ends it. Raises TargetError, UsageError for what is no key and no operator."""
        try:
            self._session = torch_session(self._control, self._session)
            session, request = self._session, self._request
            if request.key:
                session.dispatch_keys.bits_of(request.key)
                request = request._replace(key=session.dispatch_keys.own_name(request.key))
            describer = Describer(self._control.session, session, registrations=False)
            sink = make_sink(session)
            watch = ValueWatch(session, self._control, describer, request, sink)
            kernels = CompiledCodeWatch(session, self._control, request, sink)
            compiled = [pattern for pattern in request.patterns if is_compiled(pattern)]
            if compiled:
                kernels.place(compiled)
            operators = WatchedOperators(session, self._control, watch, self.note)
            if request.everything:
                operators.everything()
            else:
                operators.place([pattern for pattern in request.patterns if pattern not in compiled])
            pid = session.target.pid if self._control.can_run_beside else 0
            has_come = lambda: bool(watch.count + kernels.count)  # noqa: E731
            with SilenceNotice(pid, "call", _instead_of(request), has_come, self.note):
                ending = self._control.run()
        finally:
            self._control.close()
        if watch.over or kernels.over:
            ending = Ending(EndingKind.LIMIT, f"--limit {request.limit}")
        return WatchResult(report_target(self._session), watch.count + kernels.count, ending, tuple(self._notes))

    def note(self, *texts: str) -> None:
        """Show notes at once, and keep them for the report."""
        for text in texts:
            self._notes.append(text)
            self._notify(text)
