"""The wait-for graph of all threads in graphviz' language, and its picture where graphviz is installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.diagnosis.report import DotSection
from gdbext.diagnosis.report.resource import Resource
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.report.wait import OwnerThread, ParentsThread, VanishedThread
from gdbext.diagnosis.verdict.graph import WaitGraph
from gdbext.engine.formats import whole_file
from gdbext.errors import TargetError, UsageError
from gdbext.render import escape

if TYPE_CHECKING:
    from gdbext.diagnosis.report.wait import Owner

_DRAWING_SECONDS = 5
"""Seconds that graphviz may take: the process stands still meanwhile, and FILE is there without a picture."""


def graph(threads: Sequence[ThreadReport]) -> str:
    """A digraph: threads are boxes, resources ellipses; thread → resource → owner. Cycles are red."""
    red = {(edge.tid, edge.held_by) for cycle in WaitGraph(threads).cycles() for edge in cycle}
    lines = ["digraph waits {", "  rankdir=LR;", '  node [fontname="monospace", fontsize=10];']
    lines.extend(_thread_line(thread) for thread in threads if not thread.pool)
    drawn: set[str] = set()
    for thread in threads:
        if thread.wait and not thread.pool:
            lines.extend(_wait_lines(thread, red, drawn))
    lines.append("}")
    return "\n".join(lines) + "\n"


def write(path: str, threads: Sequence[ThreadReport]) -> DotSection:
    """Write the graph to ``path`` and, where graphviz' dot exists, a picture next to it. Raises UsageError."""
    text = graph(threads)
    write_text(path, text, "--dot")
    picture = draw(path, text)
    return DotSection((path, picture) if picture else (path,), picture)


def write_text(path: str, text: str, option: str) -> None:
    """Write a file that ``option`` asked for. Raises UsageError."""
    try:
        whole_file.write_text(path, text)
    except TargetError as error:
        raise UsageError(error.what, why=error.why, help=f"name another {option} FILE") from error


def draw(path: str, text: str) -> str | None:
    """The picture of the graph ``text``, next to its file; None without graphviz, or where it takes too long."""
    program = find_program("dot")
    if program is None:
        return None
    picture = f"{os.path.abspath(path).removesuffix('.dot')}.svg"  # noqa: PTH100
    data = text.encode("utf-8", "backslashreplace")
    try:
        done = subprocess.run([program, "-Tsvg"], input=data, capture_output=True, timeout=_DRAWING_SECONDS)
        if done.returncode != 0:
            return None
        whole_file.write(picture, done.stdout)
    except (OSError, subprocess.TimeoutExpired, TargetError):
        return None
    return picture


def _thread_line(thread: ThreadReport) -> str:
    label = thread.label
    if thread.dispatch:
        label += f"\n{thread.dispatch[0].qualified} {thread.dispatch[0].key or ''}"
    return f"  t{thread.tid} [shape=box, label={quoted(label)}];"


def _wait_lines(thread: ThreadReport, red: set[tuple[int, int]], drawn: set[str]) -> Iterator[str]:
    wait = thread.wait
    if not wait:
        return
    node = _resource_id(wait.resource, thread.tid)
    if node not in drawn:
        drawn.add(node)
        label = wait.kind.value + (f"\n{wait.resource.address:#x}" if wait.resource.address else "")
        label += f"\n{wait.resource.name}" if wait.resource.name else ""
        yield f"  {node} [shape=ellipse, label={quoted(label)}];"
    color = ", color=red" if any((thread.tid, tid) in red for tid in wait.owner_tids) else ""
    yield f'  t{thread.tid} -> {node} [label="waits for"{color}];'
    for owner in wait.owners:
        tid = owner.tid if isinstance(owner, OwnerThread) else None
        hot = ", color=red" if any(tid == holder for _, holder in red) else ""
        name = _owner_node(owner)
        held = f'{node} -> {name} [label="{"held by" if wait.certainty.is_proven else "held by?"}"{hot}];'
        if held not in drawn:
            drawn.add(held)
            yield f"  {held}"
        if not isinstance(owner, OwnerThread) and f"gone{name}" not in drawn:
            drawn.add(f"gone{name}")
            yield f"  {name} [shape=box, style=dashed, label={quoted(f'{owner.phrase} (gone)')}];"


def _owner_node(owner: Owner) -> str:
    if isinstance(owner, ParentsThread):
        return "t0"
    if isinstance(owner, VanishedThread) and owner.ident is not None:
        return f"t{owner.ident:x}"
    return f"t{owner.tid}"


def _resource_id(resource: Resource, tid: int) -> str:
    kind = resource.kind.value.replace("-", "_")
    return f"{kind}_{resource.address:x}" if resource.address else f"{kind}_of_{tid}"


def quoted(string: str) -> str:
    """A string of graphviz' language."""
    safe = "\n".join(escape(line) for line in string.split("\n"))
    return '"' + safe.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
