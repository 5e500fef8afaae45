"""``dispatch-tls``: the thread-local state that takes part in dispatch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from gdbext.diagnosis.report.report import Report
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.reporting import make_report
from gdbext.diagnosis.tool import Mode, Tool
from gdbext.diagnosis.tool_arguments import add_thread_choice, chosen_threads
from gdbext.engine.vocabulary import ErrorReport
from gdbext.errors import GdbextError
from gdbext.render.style import Style, escape
from gdbext.torch.stack.dispatch_frame import DispatchKeySet
from gdbext.torch.state.dispatch_state_reader import AutogradFlags, DispatchState, FunctorchLayer, PythonMode

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost


class ThreadStateTool(Tool):
    """The command ``dispatch-tls`` as a tool."""

    name = "dispatch-tls"
    summary = "Show a thread's dispatch state: included and excluded keys, grad mode, autocast, …"
    mode = Mode.STOPPED

    def arguments(self, parser: ArgumentParser) -> None:
        """Add the options of this tool."""
        add_thread_choice(parser)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """The state of the chosen threads. A thread that cannot be read costs that thread. Raises NotTorch,
        LayoutError."""
        session, (threads, errors) = session.settled(lambda each: self._read(each, args))
        return make_report(self, session, args, threads=threads, errors=errors)

    def _read(self, session: Session, args: Namespace) -> tuple[list[ThreadReport], list[ErrorReport]]:
        from gdbext.diagnosis.threads.thread_reporting import report_dispatch_state

        reader = session.dispatch_states
        threads = []
        errors: list[ErrorReport] = []
        for thread in chosen_threads(session.target, args, self.name):
            try:
                state = reader.read(session.memory.architecture.thread_pointer(thread.registers()))
            except GdbextError as error:
                errors.append(ErrorReport.of(error, f"thread {thread.tid}"))
                continue
            errors.extend(ErrorReport(problem, f"thread {thread.tid}") for problem in state.problems)
            threads.append(report_dispatch_state(session, thread, state))
        return threads, errors

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the report as text."""
        return render(report, style)


_Item = TypeVar("_Item")


def render(report: Report, style: Style) -> Iterator[str]:
    """All threads of the report, a blank line between them."""
    for position, thread in enumerate(report.threads):
        if position:
            yield ""
        yield style(_headline(thread), "bold")
        if thread.tls is not None:
            yield from _state(thread.tls)
    if not report.threads:
        yield "No thread to show."


def _headline(thread: ThreadReport) -> str:
    number = f" {thread.number}" if thread.number is not None else ""
    name = thread.python_name or thread.name
    named = f' "{escape(name)}"' if name else ""
    return f"Thread{number}{named} (tid {thread.tid})"


def _state(tls: DispatchState) -> Iterator[str]:
    yield f"  included  {_keys(tls.included)}"
    yield f"  excluded  {_keys(tls.excluded)}"
    yield "  " + ", ".join(f"{name} {_on_or_off(value)}" for name, value in _flags(tls).items())
    yield f"  autocast  {_autocast(tls)}"
    yield f"  functorch  {_list(tls.functorch, _layer)}"
    yield f"  Python modes  {_list(tls.python_modes, _mode)}"
    yield f"  __torch_function__  {tls.torch_function or 'unknown'}; modes {_list(tls.torch_function_modes, str)}"
    yield f"  autograd sequence number  {'unknown' if tls.sequence_number is None else tls.sequence_number}"


def _keys(keyset: DispatchKeySet | None) -> str:
    return "unknown" if keyset is None else f"({', '.join(keyset.keys)}) {keyset.bits:#x}"


def _flags(tls: DispatchState) -> dict[str, bool | None]:
    autograd: AutogradFlags | None = tls.autograd
    return {
        "grad mode": autograd.grad_mode if autograd else None,
        "inference mode": autograd.inference_mode if autograd else None,
        "forward ad": autograd.forward_ad if autograd else None,
        "multithreading": autograd.multithreading if autograd else None,
        "view replay": autograd.view_replay if autograd else None,
        "python dispatcher": tls.python_dispatcher,
    }


def _on_or_off(value: bool | None) -> str:
    return "unknown" if value is None else "on" if value else "off"


def _list(items: Sequence[_Item] | None, name: Callable[[_Item], str]) -> str:
    """``items`` None: they could not be read."""
    return "unknown" if items is None else escape(", ".join(map(name, items))) or "none"


def _layer(layer: FunctorchLayer) -> str:
    return f"{layer.transform} (level {layer.level})"


def _mode(mode: PythonMode) -> str:
    return f"{mode.name} [{mode.infra}]" if mode.infra else mode.name


def _autocast(tls: DispatchState) -> str:
    if tls.autocast is None:
        return "unknown"
    on = [f"{one.device} ({one.dtype or 'dtype unknown'})" for one in tls.autocast if one.enabled]
    extra = f", nesting {tls.autocast_nesting}, cache {_on_or_off(tls.autocast_cache)}"
    return (", ".join(on) + extra) if on else "off"
