"""``dispatch-info`` as text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gdbext.model.report import Report
from gdbext.model.sections.info_section import LibcInfo, ModuleInfo, PythonInfo, TargetInfo, TorchInfo
from gdbext.model.symbol_check import SymbolChecks
from gdbext.render.text.style import Style, escape


def render(report: Report, style: Style) -> Iterator[str]:
    """One line a fact."""
    info = report.section(TargetInfo)
    target = report.target
    if target is not None:
        kind = "core dump of process" if target.kind == "core" else "process"
        how = "no debugger" if target.debugger == "none" else target.debugger
        yield style(f"{kind} {target.pid}, {info.threads} threads, through {how}", "bold")
    yield from _torch(info.torch, report.why, style)
    yield _python(info.python)
    yield _libc(info.libc)
    yield from _modules(info.modules, style)
    yield from _environment(info.environment)


def _torch(torch: TorchInfo | None, why: bool, style: Style) -> Iterator[str]:
    if torch is None:
        yield "torch     not loaded"
        return
    yield f"torch     {escape(torch.version)}"
    layout = torch.layout
    if layout is None:
        yield "layout    none"
    else:
        origin = f"measured on {layout.made_from.get('version')}, {layout.made_from.get('compiler')}"
        yield f"layout    {layout.id}, match {layout.match} ({origin})"
    if torch.operators is not None:
        yield f"operators {torch.operators} registered"
    yield from _symbols(torch.symbols, why, style)


def _symbols(checks: SymbolChecks, why: bool, style: Style) -> Iterator[str]:
    """How many of the assumed symbols are there, and which are not; with ``why`` each of them."""
    line = f"symbols   {checks.found} of {checks.assumed} assumed symbols found"
    yield line if 0 < checks.found == checks.assumed else style(line, "yellow")
    for row in checks.rows if why else checks.missing:
        library = row.library or "any library"
        yield f"          {row.status.value}: {row.names[0]}  {library} (known from {row.first} to {row.last})"
        yield f"            {row.purpose}; lost without it: {row.lost}"


def _python(python: PythonInfo | None) -> str:
    if python is None:
        return "python    none that can be read"
    return f"python    {python.version}, {python.thread_states} thread states  {escape(python.module)}"


def _libc(libc: LibcInfo | None) -> str:
    if libc is None:
        return "libc      none"
    return f"libc      glibc {libc.version or '(version unknown)'}  {escape(libc.path)}"


def _modules(modules: Sequence[ModuleInfo], style: Style) -> Iterator[str]:
    for module in modules:
        line = f"module    {escape(module.path)}  {module.status}  {module.build_id or 'no build-id'}"
        yield line if module.status in ("ok", "memory") else style(line, "yellow")
        if module.problem:
            yield f"          {escape(module.problem)}"


def _environment(environment: Mapping[str, str]) -> Iterator[str]:
    for name, value in environment.items():
        yield f"environ   {escape(name)}={escape(value)}"
