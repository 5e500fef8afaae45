"""dispatch-values: places the hooks, lets the process run, and says why that ended."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gdbext.errors import UsageError
from gdbext.inspection.target_reporting import report_target
from gdbext.live.hooks.all_calls import AllCalls
from gdbext.live.hooks.operator_functions import OperatorFunctions
from gdbext.live.run_control import RunControl
from gdbext.live.trace.describe import Describer
from gdbext.live.values.kernel_watch import KernelWatch, is_compiled
from gdbext.live.values.value_watch import ValueRequest, ValueSink, ValueWatch
from gdbext.live.waiting import torch_session
from gdbext.model.ending import Ending, EndingKind
from gdbext.model.target_report import TargetReport
from gdbext.torch.stack.roles import classify
from gdbext.torch.symbols import STEP_CALLBACKS

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

MakeSink = Callable[["Session"], ValueSink]


@dataclass(frozen=True)
class Watched:
    """What is known when it is over."""

    target: TargetReport
    count: int
    ending: Ending
    notes: tuple[str, ...]


class Watching:
    """One run of dispatch-values."""

    def __init__(self, session: Session, control: RunControl, request: ValueRequest) -> None:
        self._session = session
        self._control = control
        self._request = request
        self._notes: list[str] = []

    def run(self, make_sink: MakeSink) -> Watched:
        """Watch until something ends it. Raises TargetError, UsageError for an operator that is not registered, and for
        what is no key."""
        try:
            self._session = torch_session(self._control, self._session)
            session, request = self._session, self._request
            if request.key:
                session.dispatch_keys.bits_of(request.key)
            describer = Describer(self._control.session, session, registrations=False)
            sink = make_sink(session)
            watch = ValueWatch(session, self._control, describer, request, sink)
            kernels = KernelWatch(session, self._control, request, sink)
            compiled = [pattern for pattern in request.patterns if is_compiled(pattern)]
            if compiled:
                kernels.place(compiled)
            self._place(watch, [pattern for pattern in request.patterns if pattern not in compiled])
            ending = self._control.run()
        finally:
            self._control.close()
        if watch.over or kernels.over:
            ending = Ending(EndingKind.LIMIT, f"--limit {request.limit}")
        return Watched(report_target(self._session), watch.count + kernels.count, ending, tuple(self._notes))

    def _place(self, watch: ValueWatch, patterns: Sequence[str]) -> None:
        session, functions = self._session, OperatorFunctions(self._session)
        if self._request.everything:
            watch.everything(AllCalls(session, functions).lookups())
            return
        unseen = []
        for pattern in patterns:
            operators = session.dispatcher.find(pattern)
            if not operators:
                raise session.dispatcher.unknown(pattern)
            for operator in operators:
                own, boxed = functions.functions(operator), functions.boxed_entries(operator)
                for function in own:
                    watch.function(function)
                for entry in boxed:
                    watch.boxed_entry(entry, self._is_boxed_call(functions))
                if not own and not boxed:
                    unseen.append(operator.qualified)
        if unseen and not watch.hooks:
            raise UsageError(
                f"calls of {', '.join(unseen[:4])} cannot be watched",
                why="they have neither functions of their own in libtorch nor unboxed kernels of their own",
                help="watch an operator that they call",
            )
        if unseen:
            self._notes.append(f"not watched, since they have no functions of their own: {', '.join(unseen[:8])}")

    def _is_boxed_call(self, functions: OperatorFunctions) -> Callable[[int], bool]:
        """Whether the function that is returned to is ``Dispatcher::callBoxed``, or has it inlined."""
        known: dict[int, bool] = {}
        wanted = STEP_CALLBACKS.address(self._session.symbolizer)

        def is_call(returns_to: int) -> bool:
            if returns_to not in known:
                function = self._session.symbolizer.function(returns_to - 1)
                role = classify(function)
                known[returns_to] = function is not None and not role.role.is_layer and (
                    role.event == "callBoxed" or (not role.role.opens and wanted in functions.calls_of(function))
                )
            return known[returns_to]

        return is_call
