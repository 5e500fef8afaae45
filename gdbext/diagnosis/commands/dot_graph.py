"""The wait-for graph of all threads in graphviz' language, and its picture where graphviz is installed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gdbext.cache import find_program
from gdbext.diagnosis.report import DotSection
from gdbext.diagnosis.report.thread_report import ThreadReport
from gdbext.diagnosis.report.wait import OwnerThread, VanishedThread
from gdbext.diagnosis.verdict.graph import WaitGraph
from gdbext.engine.formats import whole_file
from gdbext.errors import TargetError, UsageError
from gdbext.render import escape

if TYPE_CHECKING:
    from gdbext.diagnosis.report.wait import Wait


def graph_text(threads: Sequence[ThreadReport]) -> str:
    """A digraph: threads are boxes, resources ellipses; thread → resource → owner. Cycles are red."""
    red = {(edge.tid, edge.held_by) for cycle in WaitGraph(threads).cycles() for edge in cycle}
    lines = ["digraph waits {", "  rankdir=LR;", '  node [fontname="monospace", fontsize=10];']
    active = [thread for thread in threads if not thread.pool]
    for thread in active:
        step = thread.innermost
        label = thread.label + (f"\n{step.qualified} {step.key or ''}" if step else "")
        lines.append(f"  t{thread.tid} [shape=box, label={quoted(label)}];")
    drawn: set[str] = set()
    for thread in active:
        if thread.wait:
            lines.extend(_wait_lines(thread.tid, thread.wait, red, drawn))
    lines.append("}")
    return "\n".join(lines) + "\n"


def write(path: str, threads: Sequence[ThreadReport]) -> DotSection:
    """Write the graph to ``path`` and, where graphviz' dot exists, a picture next to it. Raises UsageError."""
    text = graph_text(threads)
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
    """Draw the graph ``text`` next to its file ``path``: the picture's path; None without graphviz or after 5 s."""
    program = find_program("dot")
    if program is None:
        return None
    picture = f"{os.path.abspath(path).removesuffix('.dot')}.svg"  # noqa: PTH100
    data = text.encode("utf-8", "backslashreplace")
    try:
        # the process is stopped meanwhile, and FILE is there without a picture
        done = subprocess.run([program, "-Tsvg"], input=data, capture_output=True, timeout=5)
        if done.returncode != 0:
            return None
        whole_file.write(picture, done.stdout)
    except (OSError, subprocess.TimeoutExpired, TargetError):
        return None
    return picture


def _wait_lines(tid: int, wait: Wait, red: set[tuple[int, int]], drawn: set[str]) -> Iterator[str]:
    """The resource of a thread's wait, and arrows to it and to its owners. ``red``: (waiter, owner) of the edges of
    cycles; ``drawn``, which grows: nodes and arrows that are in the graph."""
    resource = wait.resource
    suffix = f"{resource.address:x}" if resource.address else f"of_{tid}"
    node = f"{resource.kind.value.replace('-', '_')}_{suffix}"
    if node not in drawn:
        drawn.add(node)
        label = wait.kind.value + (f"\n{resource.address:#x}" if resource.address else "")
        label += f"\n{resource.name}" if resource.name else ""
        yield f"  {node} [shape=ellipse, label={quoted(label)}];"
    color = ", color=red" if any((tid, owner) in red for owner in wait.owner_tids) else ""
    yield f'  t{tid} -> {node} [label="waits for"{color}];'
    for owner in wait.owners:
        is_alive = isinstance(owner, OwnerThread)
        hot = ", color=red" if is_alive and any(owner.tid == holder for _, holder in red) else ""
        ident = owner.ident if isinstance(owner, VanishedThread) else None
        name = f"t{owner.tid}" if ident is None else f"t{ident:x}"
        held = f'{node} -> {name} [label="{"held by" if wait.certainty.is_proven else "held by?"}"{hot}];'
        if held not in drawn:
            drawn.add(held)
            yield f"  {held}"
        if not isinstance(owner, OwnerThread) and f"gone{name}" not in drawn:
            drawn.add(f"gone{name}")
            yield f"  {name} [shape=box, style=dashed, label={quoted(f'{owner.phrase} (gone)')}];"


def quoted(string: str) -> str:
    """The string as graphviz' language quotes it."""
    safe = "\n".join(escape(line) for line in string.split("\n"))
    return '"' + safe.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
