"""Which hooks a trace needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from gdbext.errors import TargetError

if TYPE_CHECKING:
    from gdbext.live.hooks.all_calls import AllCalls
    from gdbext.live.hooks.hook_installer import HookInstaller
    from gdbext.live.hooks.operator_functions import OperatorFunction, OperatorFunctions
    from gdbext.live.trace.trace_request import TraceRequest
    from gdbext.live.trace.traced_operators import TracedOperators
    from gdbext.torch.registry.operators import Operator

FUNCTION_LIMIT = 4000
"""Functions that get breakpoints; gdb takes 0.1 ms to insert each whenever the process is resumed after a stop."""


class TraceHooks:
    """Places the hooks for the operators of a trace, and later for those that are defined while it runs."""

    def __init__(
        self,
        installer: HookInstaller,
        functions: OperatorFunctions,
        all_calls: AllCalls,
        request: TraceRequest,
        note: Callable[[str], None],
    ) -> None:
        """``note`` gets what the user must know at once."""
        self._installer = installer
        self._functions = functions
        self._all_calls = all_calls
        self._request = request
        self._note = note
        self._stops_at_all_boxed = False

    def place(self, operators: TracedOperators) -> None:
        """Place all of them. Raises TargetError."""
        if self._request.everything:
            self._installer.everything(self._all_calls)
            return
        wanted = operators.all()
        functions = [each for operator in wanted for each in self._functions_of(operator)]
        boxed = self._request.boxed or self._needs_all_boxed(wanted, functions)
        self._place_functions(functions)
        for operator in wanted:
            for entry in self._functions.boxed_entries(operator):
                self._installer.boxed_entry(entry, not boxed)
        if self._request.verbose:
            self._installer.structured(wanted)
        self._installer.extensions(self._all_calls)
        if boxed:
            self._stop_at_all_boxed()
        self._installer.definitions(lambda operator: self._defined(operator, operators))

    def _functions_of(self, operator: Operator) -> list[OperatorFunction]:
        return self._functions.functions(operator)

    def _needs_all_boxed(self, wanted: Sequence[Operator], functions: Sequence[OperatorFunction]) -> bool:
        """No operator has functions of its own, so that only the dispatcher's own functions see them."""
        owners = {function.operator.address for function in functions}
        without = [operator.qualified for operator in wanted if operator.address not in owners]
        if not without or self._request.boxed:
            return False
        how = "they are not traced; --boxed does it" if functions else "every boxed call of any operator is stopped at"
        self._note(f"no functions of their own in libtorch: {', '.join(without[:8])}: {how}")
        return not functions

    def _place_functions(self, functions: Sequence[OperatorFunction]) -> None:
        if len(functions) > FUNCTION_LIMIT:
            raise TargetError(
                f"{len(functions)} functions would be stopped at; more than {FUNCTION_LIMIT} breakpoints are too slow",
                help="name fewer operators, or use --all",
            )
        for function in functions:
            self._installer.function(function, self._request.verbose)

    def _stop_at_all_boxed(self) -> None:
        """Stop at the boxed calls of all operators, once."""
        if not self._stops_at_all_boxed:
            self._stops_at_all_boxed = True
            for shared in self._all_calls.shared_lookups():
                self._installer.shared_lookup(shared)
            self._installer.python_kernels()

    def _defined(self, operator: Operator, operators: TracedOperators) -> None:
        """An operator was defined while the trace runs; without functions of its own it needs the shared lookups."""
        if not operators.add(operator):
            return
        functions = self._functions_of(operator)
        for function in functions:
            self._installer.function(function, self._request.verbose)
        if not functions:
            self._stop_at_all_boxed()
