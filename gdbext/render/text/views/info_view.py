"""``dispatch-info`` as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gdbext.model.report import Report
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """One line a fact."""
    info = report.extra["info"]
    target = report.target
    if target is not None:
        kind = "core dump of process" if target.kind == "core" else "process"
        how = "no debugger" if target.debugger == "none" else target.debugger
        yield style(f"{kind} {target.pid}, {info['threads']} threads, through {how}", "bold")
    yield from _torch(info["torch"])
    yield from _python(info["python"])
    libc = info["libc"]
    version = f"glibc {libc['version'] or '(version unknown)'}  {escape(libc['path'])}" if libc else "none"
    yield f"libc      {version}"
    yield from _modules(info["modules"], style)
    yield from _environment(info["environment"])


def _torch(torch: Mapping[str, Any] | None) -> Iterator[str]:
    if torch is None:
        yield "torch     not loaded"
        return
    yield f"torch     {escape(torch['version'])}"
    layout = torch["layout"]
    if layout is None:
        yield "layout    none"
    else:
        made = layout["made_from"]
        origin = f"measured on {made.get('version')}, {made.get('compiler')}"
        yield f"layout    {layout['id']}, match {layout['match']} ({origin})"
    if torch["operators"] is not None:
        yield f"operators {torch['operators']} registered"


def _python(python: Mapping[str, Any] | None) -> Iterator[str]:
    if python is None:
        yield "python    none that can be read"
        return
    states = python["thread_states"]
    yield f"python    {python['version']}, {states} thread states  {escape(python['module'])}"


def _modules(modules: list[Mapping[str, Any]], style: Style) -> Iterator[str]:
    for module in modules:
        build_id = module["build_id"] or "no build-id"
        line = f"module    {escape(module['path'])}  {module['status']}  {build_id}"
        yield line if module["status"] in ("ok", "memory") else style(line, "yellow")
        if module["problem"]:
            yield f"          {escape(module['problem'])}"


def _environment(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        yield f"environ   {escape(name)}={escape(value)}"
