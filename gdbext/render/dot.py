"""The wait-for graph in graphviz' language, and as a picture where graphviz is installed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

from gdbext.errors import UsageError
from gdbext.model.sections.dot_section import DotSection
from gdbext.model.threads.thread_report import ThreadReport
from gdbext.model.threads.wait import Resource
from gdbext.render.text.style import escape
from gdbext.verdict.graph import WaitGraph

_DRAWING_SECONDS = 5
"""How long graphviz may take: the process stands still meanwhile, and FILE is there without a picture."""


def graph(threads: Sequence[ThreadReport]) -> str:
    """A digraph: threads are boxes, resources ellipses; thread → resource → owner. Cycles are red."""
    red = {(edge.tid, edge.owner) for cycle in WaitGraph(threads).cycles() for edge in cycle}
    lines = ["digraph waits {", "  rankdir=LR;", '  node [fontname="monospace", fontsize=10];']
    lines.extend(_thread_line(thread) for thread in threads if thread.pool is None)
    drawn: set[str] = set()
    for thread in threads:
        if thread.wait is not None and thread.pool is None:
            lines.extend(_wait_lines(thread, red, drawn))
    lines.append("}")
    return "\n".join(lines) + "\n"


def write(path: str, threads: Sequence[ThreadReport]) -> DotSection:
    """Write the graph to ``path`` and, where graphviz' dot exists, a picture next to it. Raises UsageError."""
    write_text(path, graph(threads), "--dot")
    picture = draw(path)
    return DotSection((path, picture) if picture else (path,), picture)


def write_text(path: str, text: str, option: str) -> None:
    """Write a file that ``option`` asked for. Raises UsageError."""
    try:
        # not gdb's own encoding, which may be ASCII (LANG=C); names may hold anything
        with open(path, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text)
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}", help=f"name another {option} FILE") from error


def draw(path: str) -> str | None:
    """The picture of a graph, next to its file; None without graphviz, or where it takes too long."""
    import shutil
    import subprocess

    program = shutil.which("dot")
    if program is None:
        return None
    path = os.path.abspath(path)  # noqa: PTH100 - one that begins with "-" would be an option
    picture = f"{path.removesuffix('.dot')}.svg"
    try:
        done = subprocess.run(
            [program, "-Tsvg", path, "-o", picture], capture_output=True, timeout=_DRAWING_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return picture if done.returncode == 0 else None


def _thread_line(thread: ThreadReport) -> str:
    label = thread.label
    if thread.dispatch:
        label += f"\n{thread.dispatch[0].qualified} {thread.dispatch[0].key or ''}"
    return f"  t{thread.tid} [shape=box, label={quoted(label)}];"


def _wait_lines(thread: ThreadReport, red: set[tuple[int, int]], drawn: set[str]) -> Iterator[str]:
    wait = thread.wait
    if wait is None:
        return
    node = _resource_id(wait.resource, thread.tid)
    if node not in drawn:
        drawn.add(node)
        label = wait.kind.value + (f"\n{wait.resource.address:#x}" if wait.resource.address else "")
        label += f"\n{wait.resource.name}" if wait.resource.name else ""
        yield f"  {node} [shape=ellipse, label={quoted(label)}];"
    color = ", color=red" if any((thread.tid, owner.tid) in red for owner in wait.owners) else ""
    yield f'  t{thread.tid} -> {node} [label="waits for"{color}];'
    for owner in wait.owners:
        hot = ", color=red" if any(who_owns == owner.tid for _, who_owns in red) else ""
        held = f'{node} -> t{owner.tid} [label="{"held by" if wait.certainty.is_proven else "held by?"}"{hot}];'
        if held not in drawn:
            drawn.add(held)
            yield f"  {held}"
        if owner.gone and f"gone{owner.tid}" not in drawn:
            drawn.add(f"gone{owner.tid}")
            yield f"  t{owner.tid} [shape=box, style=dashed, label={quoted(f'thread {owner.tid} (gone)')}];"


def _resource_id(resource: Resource, tid: int) -> str:
    kind = resource.kind.value.replace("-", "_")
    return f"{kind}_{resource.address:x}" if resource.address else f"{kind}_of_{tid}"


def quoted(text: str) -> str:
    """A string of graphviz' language."""
    safe = "\n".join(escape(line) for line in text.split("\n"))
    return '"' + safe.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
