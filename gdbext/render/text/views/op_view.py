"""``dispatch-op`` as text: equal table entries on one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gdbext.model.report import Report
from gdbext.render.text.style import Style, escape

_FULL = 6
"""So many operators are shown in full; of more, one line each."""


def render(report: Report, style: Style) -> Iterator[str]:
    """Each operator, a blank line between them, then what contradicts itself."""
    operators = report.extra["operators"]
    full = len(operators) <= _FULL
    for position, operator in enumerate(operators):
        if position and full:
            yield ""
        yield from _operator(operator, style, report.why) if full else _line(operator)
    if not full:
        yield f"{len(operators)} operators; name one to see its registrations and its table"
    for finding in report.findings:
        yield style(f"note: {escape(finding.summary)}", "yellow")
        if report.why:
            yield from (f"      {escape(evidence)}" for evidence in finding.evidence)


def _line(operator: Mapping[str, Any]) -> Iterator[str]:
    yield escape(operator["schema"] or f"{qualified(operator)} (no schema)")


def qualified(operator: Mapping[str, Any]) -> str:
    """``aten::mm.out``."""
    return f"{operator['op']}.{operator['overload']}" if operator["overload"] else str(operator["op"])


def _operator(operator: Mapping[str, Any], style: Style, why: bool) -> Iterator[str]:
    yield style(escape(qualified(operator)), "bold") + (f"  OperatorDef at {operator['address']}" if why else "")
    yield f"  schema  {escape(operator['schema'] or '(none)')}"
    if operator["debug"]:
        yield f"          {escape(operator['debug'])}"
    if operator["registrations"] is None:
        yield style("  registrations cannot be read", "yellow")
    else:
        yield f"  {len(operator['registrations'])} registrations"
        for registration in operator["registrations"]:
            yield from _registration(registration, style)
    yield "  dispatch table"
    for keys, entry in grouped(operator["table"]):
        yield from _entries(keys, entry, style)


def _registration(registration: Mapping[str, Any], style: Style) -> Iterator[str]:
    marks = (" [alias]" if registration["alias"] else "") + ("" if registration["active"] else " (overridden)")
    line = f"    {registration['key']}{marks}: {function(registration)}  [{abilities(registration)}]"
    yield line if registration["active"] else style(line, "dim")
    yield style(f"        {escape(registration['debug'])}", "dim")


def grouped(table: list[Mapping[str, Any]]) -> list[tuple[list[str], Mapping[str, Any]]]:
    """Entries that have kernel, reason and source in common, in order of the first, with their keys."""
    groups: dict[tuple[Any, ...], tuple[list[str], Mapping[str, Any]]] = {}
    for entry in table:
        same = (entry["function"], entry["reason"], entry["path"], entry["debug"], entry["valid"], "expected" in entry)
        groups.setdefault(same, ([], entry))[0].append(entry["key"])
    return list(groups.values())


def _entries(keys: list[str], entry: Mapping[str, Any], style: Style) -> Iterator[str]:
    step = f"{entry['path']} {entry['reason']}" if entry["reason"] else "as it stands"
    if not entry["valid"]:
        yield style(f"    {', '.join(keys)}: missing ({step})", "dim")
        return
    yield f"    {', '.join(keys)}: {function(entry)}  [{abilities(entry)}] ({step})"
    if entry["debug"]:
        yield style(f"        {escape(entry['debug'])}", "dim")
    if "expected" in entry:
        expected = entry["expected"]
        yield style(f"        the registrations lead to {function(expected)}", "red")


def function(kernel: Mapping[str, Any]) -> str:
    """The kernel's function, with its place when it is a Python one."""
    python = kernel.get("python")
    name = escape(kernel["function"] or "no kernel")
    if python is None:
        return name
    place = f" ({python['file']}:{python['line']})" if python["file"] else ""
    return f"Python {name}{escape(place)}"


def abilities(kernel: Mapping[str, Any]) -> str:
    """``boxed unboxed``, ``fallthrough``, ``missing``."""
    if not kernel["valid"]:
        return "missing"
    if kernel["fallthrough"]:
        return "fallthrough"
    words = ("boxed", "unboxed", "sym_unboxed")
    return " ".join(word.replace("sym_unboxed", "unboxed with SymInts") for word in words if kernel[word])
