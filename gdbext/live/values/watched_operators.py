"""The operators whose values are watched: at which places each is seen, also when it is registered later."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gdbext.errors import UsageError
from gdbext.live.hooks.all_calls import AllCalls
from gdbext.live.hooks.definitions import definition_hooks
from gdbext.live.hooks.operator_functions import OperatorFunctions
from gdbext.live.run_control import RunControl
from gdbext.live.values.value_watch import ValueWatch
from gdbext.torch.registry.operator_names import matcher
from gdbext.torch.stack.roles import classify
from gdbext.torch.symbols import STEP_CALLBACKS

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.torch.registry.operators import Operator

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
        """By address, those that only boxed calls show."""
        self._sees_boxed_calls = False
        self._returns_to_call: dict[int, bool] = {}

    def everything(self) -> None:
        """Every operator. Raises TargetError."""
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
        """Whether it can be seen when an operator is registered."""
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
            self._returns_to_call[returns_to] = function is not None and not role.role.is_layer and (
                role.event == "callBoxed" or (not role.role.opens and wanted in self._functions.calls_of(function))
            )
        return self._returns_to_call[returns_to]
