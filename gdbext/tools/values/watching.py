"""dispatch-values: places the hooks on the watched operators, lets the process run, and says why that ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report import Ending, EndingKind, TargetReport
from gdbext.diagnosis.reporting import report_target
from gdbext.errors import UsageError
from gdbext.live.all_calls import AllCalls
from gdbext.live.dispatch_description import Describer
from gdbext.live.host import RunControl
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
        self._all_calls = AllCalls(session)
        self._functions = self._all_calls.functions
        self._known: set[int] = set()
        self._boxed: dict[int, Operator] = {}
        """Operators that only boxed calls show, by OperatorEntry."""
        self._sees_boxed_calls = False
        self._boxed_callers: dict[int, bool] = {}
        """By return address: whether it is in ``Dispatcher::callBoxed``."""

    def everything(self) -> None:
        """Watch every operator. Raises TargetError."""
        self._watch.everything(self._all_calls.lookups())

    def place(self, patterns: Sequence[str]) -> None:
        """Watch those that the patterns mean, now or later. Raises UsageError for what cannot be seen, TargetError."""
        if not patterns:
            return
        dispatcher, missing = self._session.dispatcher, []
        for pattern in patterns:
            operators = dispatcher.find(pattern)
            for operator in operators:
                self._add(operator)
            if not operators:
                missing.append(dispatcher.unknown(pattern))
        matchers = [matcher(pattern) for pattern in patterns]

        def defined(operator: Operator) -> None:
            if any(matches(operator.qualified) for matches in matchers):
                self._add(operator)

        hooks = definition_hooks(self._session, self._functions, defined)
        for spec in hooks:
            self._control.place(spec)
        if missing and not hooks:  # an operator that is registered later could not be seen
            raise missing[0]
        for error in missing:
            self._note(f"{error} ({error.help}): waiting for it")
        if not self._boxed:
            return
        names = ", ".join([operator.qualified for operator in self._boxed.values()][:_NAMES_SHOWN])
        if self._sees_boxed_calls:
            self._note(f"no functions of their own: {names}: every boxed call of any operator is stopped at")
            return
        what = f"calls of {names} cannot be watched"
        why = "they have no functions of their own, and callBoxed was not found"
        if not self._watch.hooks:
            raise UsageError(what, why=why, help="watch an operator that they call")
        self._note(f"{what}: {why}")

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
                self._watch.boxed_entry(entry, operator, self._is_boxed_call)

    def _stop_at_boxed_calls(self) -> None:
        before = self._watch.hooks
        self._watch.boxed_calls(self._all_calls.boxed_calls(), self._boxed)
        self._sees_boxed_calls = self._watch.hooks > before
        self._watch.own_lookups(self._all_calls, self._boxed)
        for text in self._all_calls.not_seen():
            self._note(f"{text}: what they call is not watched")
        self._watch.python_kernels(self._functions.python_entries(), self._boxed, self._is_boxed_call)

    def _is_boxed_call(self, returns_to: int) -> bool:
        """The function that is returned to is ``Dispatcher::callBoxed``, or has it inlined."""
        if returns_to not in self._boxed_callers:
            function = self._session.symbolizer.function(returns_to - 1)
            role, is_boxed_call = classify(function), False
            if function and role.role.opens:
                is_boxed_call = role.event == "callBoxed"
            elif function and not role.role.is_layer:
                asked = STEP_CALLBACKS.address(self._session.symbolizer)
                is_boxed_call = role.event == "callBoxed" or asked in self._functions.calls_of(function)
            self._boxed_callers[returns_to] = is_boxed_call
        return self._boxed_callers[returns_to]


class WatchResult(NamedTuple):
    """The result of a watch."""

    target: TargetReport
    calls: int
    """Number of calls that were seen."""
    ending: Ending
    notes: tuple[str, ...]


def watch_values(
    session: Session,
    control: RunControl,
    request: ValueRequest,
    sink: ValueSink,
    warnings: Sequence[str],
    notify: Callable[[str], None],
) -> WatchResult:
    """Watch until something ends it. ``warnings`` are the first notes; ``notify`` shows a note at once. Raises
    TargetError, UsageError for what is no key and no operator."""
    notes: list[str] = []

    def note(text: str) -> None:
        notes.append(text)
        notify(text)

    for warning in warnings:
        note(warning)
    limited = request.tid or request.key or request.kernel
    limits = ", as asked for (--thread, --key, --kernel)" if limited else ""
    called = f"did not call {escape(' '.join(request.patterns))}" if request.patterns else "called no operator"
    try:
        session = torch_session(control, session)
        if request.key:
            session.dispatch_keys.bits_of(request.key)
            request = request._replace(key=session.dispatch_keys.own_name(request.key))
        describer = Describer(control.session, session, registrations=False)
        watch = ValueWatch(session, control, describer, request, sink)
        kernels = CompiledCodeWatch(session, control, request, sink)
        compiled = [pattern for pattern in request.patterns if is_compiled(pattern)]
        if compiled:
            kernels.place(compiled)
        operators = WatchedOperators(session, control, watch, note)
        if request.everything:
            operators.everything()
        else:
            operators.place([pattern for pattern in request.patterns if pattern not in compiled])

        def has_come() -> bool:
            return bool(watch.count + kernels.count)

        pid = session.target.pid if control.can_run_beside else 0
        with SilenceNotice(pid, "call", f"{called}{limits}: dispatch-top counts what they do", has_come, note):
            ending = control.run()
    finally:
        control.close()
    if watch.over or kernels.over:
        ending = Ending(EndingKind.LIMIT, f"--limit {request.limit}")
    return WatchResult(report_target(session), watch.count + kernels.count, ending, tuple(notes))
