"""``dispatch-bt``: the dispatcher's path through a stack, each pass with its Python lines, innermost first."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from gdbext.diagnosis.report.thread_report import Frame, FrameKind, ThreadReport
from gdbext.diagnosis.reporting import dispatcher_errors, make_report, with_arguments
from gdbext.diagnosis.threads.frame_locals import FrameLocals, variable_lines
from gdbext.diagnosis.threads.source_lines import NO_SOURCES, SourceLines, source_lines
from gdbext.diagnosis.threads.thread_reporting import report_stack, with_nodes
from gdbext.diagnosis.tool import Tool
from gdbext.diagnosis.tool_arguments import add_thread_choice, chosen_threads
from gdbext.engine.repetitions import fold
from gdbext.engine.vocabulary import Certainty, ErrorReport
from gdbext.errors import GdbextError
from gdbext.render import Style, escape, python_source
from gdbext.torch.registry.dispatch_table import registration_text
from gdbext.torch.values.value_text import statistics_text

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Hashable, Iterable, Iterator

    from gdbext.diagnosis.report import Report
    from gdbext.diagnosis.report.thread_report import BackwardNode
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.tool import ToolHost
    from gdbext.torch.stack import DispatchFrame

    Block = tuple[Hashable, Callable[[], Iterable[str]]]
    """What makes a block equal to another (no frame numbers), and what makes its lines."""

_EPILOG = """\
Innermost first. Each entry is one pass through the dispatcher:

  #11   [redispatch] op=[aten::mm], key=[Meta]  in-kernel, exact
        DispatchKeySet(Meta)  0x18000, table index 16
        kernel meta_mm at model.py:3  (boxed only)
               registered at model.py:9, path 1

#11 is the native frame, [redispatch] the event (call, redispatch, callBoxed, redispatchBoxed), key the one that was
chosen. The stage is entering (the operator's handle is being made), lookup, invoking (boxing layers) or in-kernel.
exact: the keyset was read where the calling code passed it, and this operator's table has the running kernel for it;
verified: found in the frame and proven the same way; inferred: from the kernel alone. --why shows the proof. path is
the step of computeDispatchTableEntryWithDebug that chose the kernel: 1 its own, 2.x an alias key, 3 a fallback.
--args adds a line, "(self=f32[32, 64] cpu, dim=1)": read from the boxed stack, or from registers and stack slots by the
C++ signature, or from the Python frames of torch.ops.NAME(…) and __torch_dispatch__. "?": no longer recoverable; "1?":
likely, unproven, or changed by the operator. Arguments of a Python kernel are read from its local
variables, which the kernel may have reassigned.
--locals adds "step = 12, batch = f32[8, 16] cpu" to each frame of the program's own, as the variables are now.
In a backward pass "node" names what the engine runs in the frames above that line, with its sequence number.
"never entered": the key that the innermost kernel should redispatch to next.
"""


class DispatchBacktrace(Tool):
    """The command ``dispatch-bt`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _EPILOG
        add_thread_choice(parser)
        add = parser.add_argument
        add("--native", action="store_true", help="also show every native frame")
        add("--args", action="store_true", help="also show each operator's arguments where they can be recovered")
        add("--locals", action="store_true", help="also show the variables of the program's own Python frames")
        add("--values", action="store_true", help="also show statistics of the arguments' tensors (implies --args)")

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:  # noqa: ARG002
        """The chosen threads' paths through the dispatcher. An error in one thread costs only that thread."""

        def read(session: Session) -> tuple[list[ThreadReport], list[ErrorReport]]:
            """(the chosen threads' reports, the errors of those that could not be read)."""
            threads = []
            errors = [*dispatcher_errors(session)]
            for thread in chosen_threads(session.target, args, self.name):
                try:
                    report = report_stack(session, thread, native=args.native, explained=args.why)
                    if args.args or args.values:
                        stack = session.threads.snapshot(thread).stack
                        report = with_arguments(session, report, stack, statistics=args.values)
                    threads.append(with_nodes(session, thread, report))
                except GdbextError as error:
                    errors.append(ErrorReport.of(error, f"thread {thread.tid}"))
            if args.locals:
                reader = FrameLocals(session)
                threads = [reader.with_variables(thread, every_frame=True) for thread in threads]
            return threads, errors

        has_values = args.args or args.values or args.locals
        if has_values:
            session, (threads, errors) = session.read_at_one_moment(read, marks_threads_that_ran=True)
        else:
            session, (threads, errors) = session.read_consistently(read)
        sources = {} if args.json else source_lines(session.target, threads)
        return make_report(self, session, args, threads=threads, errors=errors, sources=sources)

    def view(self, report: Report, style: Style) -> Iterator[str]:
        return render(report, style)


_SOURCE = "        "
"""Indent of a line of source: below the function's name."""
_PASS = "     "
"""Indent below a frame's first line: the width of "#1234"."""


def render(report: Report, style: Style) -> Iterator[str]:
    """All threads of the report, a blank line between them."""
    for position, thread in enumerate(report.threads):
        if position:
            yield ""
        yield from thread_lines(thread, style, report.why, report.sources)
    if not report.threads:
        yield "No thread to show."


def thread_lines(
    thread: ThreadReport, style: Style, why: bool = False, sources: SourceLines = NO_SOURCES
) -> Iterator[str]:
    """One thread: a headline, then its blocks; a sequence of blocks that repeats is shown once, with its count."""
    yield style(headline(thread), "bold")
    blocks = _blocks(thread, style, why, sources)
    if thread.dispatch_doubt is not None:
        what = (
            "more frames of the dispatcher are possible" if thread.dispatch else "no frame of the dispatcher was found"
        )
        yield style(f"{_PASS} {what}: {escape(thread.dispatch_doubt)}", "yellow")
    elif not thread.dispatch:
        yield f"{_PASS} not in the dispatcher ({thread.frame_count} native frames)"
    for run in fold([identity for identity, _ in blocks]):
        for _, lines in blocks[run.start : run.start + run.period]:
            yield from lines()
        if run.times > 1:
            entries = f"{run.period} entries" if run.period > 1 else "entry"
            yield style(f"{_PASS} … the {entries} above, {run.times} times in a row …", "yellow")
    for note in thread.notes:
        yield style(f"{_PASS} note: {escape(note)}", "yellow")


def source_text(frame: Frame, style: Style, sources: SourceLines) -> Iterator[str]:
    """The source line that a Python frame is at, with a warning if its file has changed; its variables."""
    source = sources.get((frame.file, frame.line or 0))
    if source:
        doubt = style(f"  [{escape(source.changed)}]", "yellow") if source.changed else ""
        yield f"{_SOURCE}{python_source(source.text, style)}{doubt}"
    if frame.variables or frame.hidden_variables:
        yield from (style(f"{_SOURCE}{escape(line)}", "dim") for line in variable_lines(frame))


def headline(thread: ThreadReport) -> str:
    """``Thread 1 "MainThread" (tid 2056): aten::mm, key Meta, in-kernel``."""
    return title(thread) + innermost_operator(thread)


def title(thread: ThreadReport) -> str:
    """``Thread 1 "MainThread" (tid 2056)``."""
    number = f" {thread.number}" if thread.number is not None else ""
    name = thread.python_name or thread.name
    named = f' "{escape(name)}"' if name else ""
    signal = f", stopped by {thread.signal}" if thread.signal else ""
    return f"Thread{number}{named} (tid {thread.tid}{signal})"


def innermost_operator(thread: ThreadReport) -> str:
    """``: aten::mm, key Meta, in-kernel``; "" outside the dispatcher."""
    if not thread.dispatch:
        return ""
    step = thread.dispatch[0]
    key = f", key {step.key}" if step.key else ""
    return f": {escape(step.qualified)}{key}, {step.stage.value}"


def _blocks(thread: ThreadReport, style: Style, why: bool, sources: SourceLines) -> list[Block]:
    """The blocks of a thread's text: frames, dispatch steps and nodes, innermost first."""
    blocks: list[tuple[int, int, Block]] = []
    for order, frame in enumerate(thread.frames or thread.python_frames):
        identity: Hashable = frame.function, frame.file, frame.line
        if frame.kind is not FrameKind.PYTHON:  # functions without names are not one function
            identity = frame.function, frame.module, frame.pc if frame.function == "??" else None
        blocks.append((frame.level, order, (identity, partial(_frame_lines, frame, style, sources))))
    for step in thread.dispatch:
        # A step is above the frame that opens it, so that innermost-first order holds for both.
        identity = step.event, step.qualified, step.key, step.keyset.bits if step.keyset else None
        blocks.append((step.level, -1, (identity, partial(_step_lines, step, style, why))))
    blocks.extend((node.level, -1, (_node_text(node), partial(node_lines, node, style))) for node in thread.backward)
    blocks.sort(key=lambda item: item[:2])
    return [block for _, _, block in blocks]


def _step_lines(step: DispatchFrame, style: Style, why: bool) -> Iterator[str]:
    """One pass through the dispatcher, as _EPILOG describes it."""
    indent, kernel = f"{_PASS}   ", step.kernel
    yield style(f"#{step.level:<4} {dispatch_words(step)}", "bold") + f"  {step.stage.value}, {step.confidence.value}"
    if step.arguments:
        doubted = [
            "?" if argument.confidence is Certainty.INFERRED and not argument.variable else ""
            for argument in step.arguments
        ]
        texts = ", ".join(argument.short + doubt for argument, doubt in zip(step.arguments, doubted))
        from_frame = (
            "  as the kernel's frame has them now" if any(argument.variable for argument in step.arguments) else ""
        )
        yield f"{indent}{escape(f'({texts}){from_frame}')}"
    for argument in step.arguments:
        for tensor in argument.tensors:
            if tensor.statistics:
                text = f"{argument.name}: {tensor.short} at {tensor.address:#x}: {statistics_text(tensor.statistics)}"
                yield f"{indent}  {escape(text)}"
    if step.keyset:
        index = f", table index {step.table_index}" if step.table_index is not None else ""
        yield f"{indent}{step.keyset_text}  {step.keyset.bits:#x}{index}"
    else:
        yield f"{indent}DispatchKeySet unknown"
    if kernel and kernel.valid is False:
        yield style(f"{indent}no kernel: PyTorch raises NotImplementedError here", "yellow")
    elif kernel:
        boxing = "boxed only" if kernel.boxed and kernel.unboxed is False else "unboxed" if kernel.unboxed else ""
        yield f"{indent}kernel {escape(kernel.function)}" + (f"  ({boxing})" if boxing else "")
        if kernel.registered_at:
            path = f", path {kernel.path}" if kernel.path else ""
            yield f"{indent}       {escape(registration_text(kernel.registered_at))}{path}"
    if step.never_entered:
        yield style(f"{indent}never entered: {step.never_entered}", "yellow")
    if why:
        yield from (f"{indent}why: {escape(evidence)}" for evidence in step.evidence)


def node_lines(node: BackwardNode, style: Style) -> tuple[str, ...]:
    """A node that runs: its name, and the line of the forward pass that made it."""
    return (style(f"#{node.level:<4} {_node_text(node)}", "cyan"),)


def _node_text(node: BackwardNode) -> str:
    """``node  MmBackward0, sequence number 7, made at train.py:8 (step)``."""
    variable = f" of {escape(node.variable)}" if node.variable else ""
    number = f", sequence number {node.sequence_nr}" if node.sequence_nr is not None and not node.variable else ""
    text = f"node  {escape(node.name)}{variable}{number}"
    return text + (f", made at {escape(node.made_at)}" if node.made_at else "")


def dispatch_words(step: DispatchFrame) -> str:
    """``[call] op=[aten::mm], key=[AutogradMeta]``, as in PyTorch's own trace."""
    return f"[{step.event_name}] op=[{escape(step.qualified)}], key=[{step.key_text or 'unknown'}]"


def _frame_lines(frame: Frame, style: Style, sources: SourceLines) -> Iterator[str]:
    """A Python frame with its source, or a native one with level, pc, function, module and role."""
    function = escape(frame.function)
    if frame.kind is FrameKind.PYTHON:
        yield style(f"py    {function} at {escape(frame.file)}:{frame.line or '?'}", "cyan")
        yield from source_text(frame, style, sources)
        return
    role = f"  [{frame.role}]" if frame.role else ""
    module = f"  {escape(frame.module)}" if frame.module else ""
    role += f"  {escape(frame.file)}" if frame.file else ""
    pc = f"{frame.pc:#018x} " if frame.pc is not None else ""
    yield f"#{frame.level:<4} {pc}{function}{style(module + role, 'dim')}"
