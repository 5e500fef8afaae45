"""``dispatch-bt`` as text: each pass through the dispatcher innermost first, Python lines in place."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gdbext.model.certainty import Certainty
from gdbext.model.dispatch.argument import Argument, ArgumentTensor
from gdbext.model.dispatch.dispatch_frame import DispatchFrame
from gdbext.model.judgement.repetition import fold
from gdbext.model.report import Report
from gdbext.model.threads.frame import Frame, FrameKind
from gdbext.model.threads.source_line import NO_SOURCES, SourceLines
from gdbext.model.threads.thread_report import ThreadReport
from gdbext.render.text.highlight import python_source
from gdbext.render.text.style import Style, escape

if TYPE_CHECKING:
    from gdbext.model.threads.backward_node import BackwardNode

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
    """One thread: a headline, then its blocks, repeated blocks folded."""
    yield style(headline(thread), "bold")
    blocks = _blocks(thread, style, why, sources)
    if thread.unseen_dispatch is not None:
        what = "there may be more than this in the dispatcher" if thread.dispatch else "nothing known in the dispatcher"
        yield style(f"{_PASS} {what}: {escape(thread.unseen_dispatch.reason)}", "yellow")
    elif not thread.dispatch:
        yield f"{_PASS} not in the dispatcher ({thread.frame_count} native frames)"
    yield from folded_lines(blocks, style)
    for note in thread.notes:
        yield style(f"{_PASS} note: {escape(note)}", "yellow")


def source_text(frame: Frame, style: Style, sources: SourceLines) -> Iterator[str]:
    """The line of source that a Python frame is at, with a warning where the file is another one by now."""
    source = sources.get((frame.file, frame.line or 0))
    if source is not None:
        doubt = style(f"  [{source.changed}]", "yellow") if source.changed else ""
        yield f"{_SOURCE}{python_source(source.text, style)}{doubt}"


def headline(thread: ThreadReport) -> str:
    """``Thread 1 "MainThread" (tid 2056): aten::mm, key Meta, in-kernel``."""
    return title(thread) + where(thread)


def title(thread: ThreadReport) -> str:
    """``Thread 1 "MainThread" (tid 2056)``."""
    number = f" {thread.number}" if thread.number is not None else ""
    name = thread.python_name or thread.name
    named = f' "{escape(name)}"' if name else ""
    signal = f", stopped by {thread.signal}" if thread.signal else ""
    return f"Thread{number}{named} (tid {thread.tid}{signal})"


def where(thread: ThreadReport) -> str:
    """The innermost operator in a few words, "" outside the dispatcher."""
    if not thread.dispatch:
        return ""
    step = thread.dispatch[0]
    key = f", key {step.key}" if step.key else ""
    return f": {escape(step.qualified)}{key}, {step.stage.value}"


Block = tuple[str, "tuple[str, ...]"]
"""What makes a block equal to another (no frame numbers), and its lines."""


def folded_lines(blocks: list[Block], style: Style) -> Iterator[str]:
    """The lines of ``blocks``; a block sequence that repeats is shown once, with its count."""
    for run in fold([block[0] for block in blocks]):
        for _, lines in blocks[run.start : run.start + run.period]:
            yield from lines
        if run.times > 1:
            plural = "entries" if run.period > 1 else "entry"
            yield style(f"{_PASS} … the {run.period} {plural} above, {run.times} times in a row …", "yellow")


def _blocks(thread: ThreadReport, style: Style, why: bool, sources: SourceLines) -> list[Block]:
    frames = thread.frames or thread.python
    blocks: list[tuple[int, int, Block]] = []
    for order, frame in enumerate(frames):
        blocks.append((frame.level, order, _frame_block(frame, style, sources)))
    for step in thread.dispatch:
        # A step stands above the frame that opens it, so that innermost-first order holds for both.
        blocks.append((step.level, -1, _step_block(step, style, why)))
    blocks.extend((node.level, -1, _node_block(node, style)) for node in thread.nodes)
    blocks.sort(key=lambda item: (item[0], item[1]))
    return [block for _, _, block in blocks]


def _step_block(step: DispatchFrame, style: Style, why: bool) -> Block:
    first = f"#{step.level:<4} {dispatch_words(step)}"
    lines = [style(first, "bold") + f"  {step.stage.value}, {step.confidence.value}"]
    lines += (f"{_PASS}   {escape(line)}" for line in _argument_lines(step.arguments))
    lines.append(f"{_PASS}   {_keyset_line(step)}")
    if step.kernel is not None:
        lines.extend(f"{_PASS}   {line}" for line in _kernel_lines(step))
    if step.never_entered:
        lines.append(style(f"{_PASS}   never entered: {step.never_entered}", "yellow"))
    if why:
        lines.extend(f"{_PASS}   why: {escape(evidence)}" for evidence in step.evidence)
    return repr((step.event, step.qualified, step.key, step.keyset)), tuple(lines)


def _node_block(node: BackwardNode, style: Style) -> Block:
    variable = f" of {escape(node.variable)}" if node.variable else ""
    known = node.sequence_nr is not None and not node.variable
    text = f"node  {escape(node.name)}{variable}{f', sequence number {node.sequence_nr}' if known else ''}"
    return text, (style(f"#{node.level:<4} {text}", "cyan"),)


def dispatch_words(step: DispatchFrame) -> str:
    """``[call] op=[aten::mm], key=[AutogradMeta]``, as in PyTorch's own trace."""
    return f"[{step.event.value}] op=[{escape(step.qualified)}], key=[{step.key or 'unknown'}]"


def _argument_lines(arguments: Sequence[Argument]) -> Iterator[str]:
    """All of them on one line, then the statistics of each tensor, where there are any."""
    if not arguments:
        return
    yield f"({', '.join(map(_argument_text, arguments))})"
    for argument in arguments:
        yield from (_tensor_line(argument.name, each) for each in argument.tensors if each.statistics is not None)


def _tensor_line(name: str, tensor: ArgumentTensor) -> str:
    from gdbext.render.text.views.tensor_view import statistics_text

    assert tensor.statistics is not None
    return f"  {name}: {tensor.short} at {tensor.address:#x}: {statistics_text(tensor.statistics)}"


def _argument_text(argument: Argument) -> str:
    doubt = "?" if argument.certainty is Certainty.INFERRED else ""
    return f"{argument.short}{doubt}"


def _keyset_line(step: DispatchFrame) -> str:
    if step.keyset is None:
        return "DispatchKeySet unknown"
    text = f"DispatchKeySet({', '.join(step.keyset.keys)})"
    index = f", table index {step.table_index}" if step.table_index is not None else ""
    return f"{text}  {step.keyset.bits:#x}{index}"


def _kernel_lines(step: DispatchFrame) -> Iterator[str]:
    kernel = step.kernel
    assert kernel is not None
    if kernel.valid is False:
        yield "kernel missing"
        return
    boxing = "boxed only" if kernel.boxed and kernel.unboxed is False else "unboxed" if kernel.unboxed else ""
    yield f"kernel {escape(kernel.function)}" + (f"  ({boxing})" if boxing else "")
    if kernel.registered_at:
        path = f", path {kernel.path}" if kernel.path else ""
        yield f"       {escape(kernel.registered_at)}{path}"


def _frame_block(frame: Frame, style: Style, sources: SourceLines) -> Block:
    function = escape(frame.function)
    if frame.kind is FrameKind.PYTHON:
        text = f'py    {function}  File "{escape(frame.file)}", line {frame.line if frame.line else "?"}'
        return text, (style(text, "cyan"), *source_text(frame, style, sources))
    role = f"  [{frame.role}]" if frame.role else ""
    module = f"  {escape(frame.module)}" if frame.module else ""
    role += f"  {escape(frame.file)}" if frame.file else ""
    pc = f"{frame.pc:#018x} " if frame.pc is not None else ""
    same = pc if frame.function == "??" else ""  # functions without names are not one function
    return f"{same}{function}{module}", (f"#{frame.level:<4} {pc}{function}{style(module + role, 'dim')}",)
