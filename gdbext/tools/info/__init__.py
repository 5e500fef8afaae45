"""The tools dispatch-info (torch, Python, libc, layouts; settings; memory) and measure (layouts from PyTorch's headers,
for containers and machines without a compiler: elsewhere an inspection measures by itself)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import dispatcher_errors, make_report, torch_version
from gdbext.diagnosis.tool import Tool, ToolHost
from gdbext.engine.formats.elf import build_id_of_file
from gdbext.engine.layouts import store
from gdbext.engine.layouts.store import is_before, newest_release
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.system import linux
from gdbext.engine.terminal import shown_json
from gdbext.engine.vocabulary import Section, counted, json_member
from gdbext.errors import GdbextError, SymbolFileError, UsageError
from gdbext.known.package_versions import libc_version
from gdbext.render import Style, escape
from gdbext.tools.info import held_memory, settings_view
from gdbext.tools.info.held_memory import read_memory
from gdbext.tools.info.settings_report import read_settings
from gdbext.tools.outcome import Outcome
from gdbext.tools.program import Program
from gdbext.torch.assumed_symbols import TORCH_SYMBOLS
from gdbext.torch.measure import measurement
from gdbext.torch.state.setting_sources import SettingsSection
from gdbext.torch.torch_symbol import NameKind, TorchSymbol

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.modules import Module
    from gdbext.engine.vocabulary import Hexadecimal, Inline
    from gdbext.tools.program import Dispatch


class SymbolStatus(Enum):
    """The result of checking an assumption about a symbol in one process."""

    FOUND = "found"
    MISSING = "missing"
    NOT_LOADED = "library not loaded"
    UNREADABLE = "library's symbols cannot be read"
    OTHER_RELEASE = "not of this release"
    UNOPTIMIZED_ONLY = "only in code that is compiled without optimization"


@dataclass(frozen=True)
class SymbolCheck:
    """The check of one assumed symbol in a process."""

    id: str
    symbol: Inline[TorchSymbol]
    status: SymbolStatus


@dataclass(frozen=True)
class SymbolChecks:
    """The checks of all assumed symbols, in the order of TORCH_SYMBOLS."""

    rows: tuple[SymbolCheck, ...]

    @json_member(after="")
    def found(self) -> int:
        """Number of symbols that were found."""
        return sum(row.status is SymbolStatus.FOUND for row in self.rows)

    @json_member(after="found")
    def assumed(self) -> int:
        """Number of symbols that could be found."""
        return sum(row.status in (SymbolStatus.FOUND, SymbolStatus.MISSING) for row in self.rows)

    @property
    def missing(self) -> tuple[SymbolCheck, ...]:
        return tuple(row for row in self.rows if row.status is SymbolStatus.MISSING)


def check_symbols(symbolizer: Symbolizer, version: str) -> SymbolChecks:
    """Look up each symbol of TORCH_SYMBOLS in its library; ``version``: torch's (``2.13.0+cpu``)."""
    newest = newest_release()
    rows = []
    for name, symbol in TORCH_SYMBOLS.items():
        status = in_release(symbol, symbol_status(symbol, symbolizer), version)
        rows.append(SymbolCheck(name.lower(), symbol._replace(last=symbol.last or newest), status))
    return SymbolChecks(tuple(rows))


def in_release(symbol: TorchSymbol, status: SymbolStatus, version: str) -> SymbolStatus:
    """The status for that version of torch: a symbol of later versions is not missing."""
    is_later = status is SymbolStatus.MISSING and is_before(version, symbol.first)
    return SymbolStatus.OTHER_RELEASE if is_later else status


def symbol_status(symbol: TorchSymbol, symbolizer: Symbolizer) -> SymbolStatus:
    """Check whether the process has a symbol, by its exact names, or by the beginnings of the names of a family."""
    if symbol.unoptimized:
        return SymbolStatus.UNOPTIMIZED_ONLY
    library = symbol.library or None
    module = symbolizer.modules.named(library) if library else None
    if library and not module:
        return SymbolStatus.NOT_LOADED
    index = symbolizer.index(module) if module else None
    if library and not index:
        return SymbolStatus.UNREADABLE
    is_family = symbol.kind is not NameKind.SYMBOL
    try:
        names = symbol.examples if is_family else symbol.names
        exists = any(symbolizer.search(name, library) for name in names)
        if not exists and is_family and index:
            exists = any(index.has_beginning(name) for name in symbol.beginnings)
    except SymbolFileError:
        return SymbolStatus.UNREADABLE
    return SymbolStatus.FOUND if exists else SymbolStatus.MISSING


@dataclass(frozen=True)
class LayoutInfo:
    """The torch layout in use. ``made_from``: the build on which it was measured ("version", "compiler", …)."""

    id: str
    match: str
    made_from: Mapping[str, object]


@dataclass(frozen=True)
class TorchInfo:
    """PyTorch; ``layout`` and ``operators``, the number of registered ones, are None if unknown."""

    version: str
    layout: LayoutInfo | None
    operators: int | None
    symbols: SymbolChecks


@dataclass(frozen=True)
class PythonInfo:
    """The CPython in the process."""

    version: str
    module: str
    thread_states: int


@dataclass(frozen=True)
class LibcInfo:
    """The C library; ``version`` is None if its banner cannot be read."""

    path: str
    version: str | None


@dataclass(frozen=True)
class ModuleInfo:
    """A mapped ELF file that gdbext needs, or that cannot be used."""

    path: str
    status: str
    problem: str | None
    build_id: str | None
    base: Hexadecimal


@dataclass(frozen=True)
class TargetInfo(Section):
    """The facts about a process; a part that does not exist or cannot be read is None."""

    name: ClassVar[str] = "info"
    threads: int
    torch: TorchInfo | None
    python: PythonInfo | None
    libc: LibcInfo | None
    modules: tuple[ModuleInfo, ...]
    environment: Mapping[str, str]
    """Initial environment variables that affect torch, OpenMP, NCCL or Python."""


LIBRARIES = (
    "libtorch_cpu.so",
    "libtorch_python.so",
    "libc10.so",
    "libtorch_cuda.so",
    "libgomp",
    "libiomp5",
    "libc.so.6",
)
"""Modules that are always listed; a name without ".so" matches a prefix."""


def read_target_info(session: Session) -> TargetInfo:
    """Read the facts about a process; the session's errors say what could not be read."""
    python, libc = session.python, session.modules.named("libc.so.6")
    states = sum(map(len, session.python_threads.states.values())) if python else 0
    return TargetInfo(
        threads=len(session.target.memory.threads()),
        torch=_torch_info(session),
        python=PythonInfo(python.version, python.module.path, states) if python else None,
        libc=LibcInfo(libc.path, libc_version(libc)) if libc else None,
        modules=tuple(
            # A base, the difference from the file's addresses, is modulo 2**64: it may be negative.
            ModuleInfo(module.path, module.status, module.problem or None, module.build_id, module.base % (1 << 64))
            for module in session.modules.modules
            if _is_listed(module)
        ),
        environment=linux.shown_variables(session.target.origin.environ()),
    )


def _is_listed(module: Module) -> bool:
    """True if the module is one of LIBRARIES, or is code and cannot be used. In a core, other mapped files (locales,
    fonts) may look like modules."""
    for name in LIBRARIES:
        # A versioned name: Debian's libtorch_cpu.so.1.13.0, a wheel's libgomp-a34b3233.so.1.
        if module.name == name or module.name.startswith(f"{name}." if ".so" in name else name):
            return True
    if module.status in ("ok", "memory"):
        return False
    return ".so" in module.name or any("x" in mapping.permissions for mapping in module.mappings)


def _torch_info(session: Session) -> TorchInfo | None:
    """The facts about PyTorch; None if it is not loaded."""
    version = torch_version(session)
    if not version:
        return None
    layout = session.layout_if_known
    info = LayoutInfo(layout.id, layout.match, dict(layout.provenance)) if layout else None
    operators = None
    if not session.dispatcher_error:
        try:
            operators = len(session.dispatcher.entries)
        except GdbextError as error:
            session.errors.note(error, "operators")
    return TorchInfo(version, info, operators, check_symbols(session.symbolizer, version))


def render(report: Report, style: Style) -> Iterator[str]:
    """The text of dispatch-info without options: a line for each fact."""
    info = report.section(TargetInfo)
    target, python, libc = report.target, info.python, info.libc
    if target:
        kind = "core dump of process" if target.kind == "core" else "process"
        how = "no debugger" if target.debugger == "none" else escape(target.debugger)
        yield style(f"{kind} {target.pid}, {counted(info.threads, 'thread')}, through {how}", "bold")
    if info.torch:
        yield from _torch_lines(info.torch, report.why, style)
    else:
        yield "torch     not loaded"
    if python:
        states = counted(python.thread_states, "thread state")
        yield f"python    {python.version}, {states}  {escape(python.module)}"
    else:
        yield "python    none readable"
    yield f"libc      glibc {libc.version or '(version unknown)'}  {escape(libc.path)}" if libc else "libc      none"
    for module in info.modules:
        line = f"module    {escape(module.path)}  {module.status}  {module.build_id or 'no build-id'}"
        yield line if module.status in ("ok", "memory") else style(line, "yellow")
        if module.problem:
            yield f"          {escape(module.problem)}"
    yield from (f"environ   {escape(name)}={escape(value)}" for name, value in info.environment.items())


def _torch_lines(torch: TorchInfo, why: bool, style: Style) -> Iterator[str]:
    """Lines on PyTorch, with the assumed symbols that are missing, or with all of them (``why``)."""
    yield f"torch     {escape(torch.version)}"
    layout = torch.layout
    if layout:
        origin = f"measured on {layout.made_from.get('version')}, {layout.made_from.get('compiler')}"
        yield f"layout    {layout.id}, match {layout.match} ({origin})"
    else:
        yield "layout    none"
    if torch.operators is not None:
        yield f"operators {torch.operators} registered"
    checks = torch.symbols
    line = f"symbols   {checks.found} of {checks.assumed} assumed symbols found"
    yield line if checks.found and checks.found == checks.assumed else style(line, "yellow")
    for row in checks.rows if why else checks.missing:
        symbol = row.symbol
        library = symbol.library or "any library"
        yield f"          {row.status.value}: {symbol.names[0]}  {library} (known from {symbol.first} to {symbol.last})"
        yield f"            {symbol.purpose}; without it: {symbol.lost}"


class InfoTool(Tool):
    """The command ``dispatch-info`` as a tool."""

    def arguments(self, parser: ArgumentParser) -> None:
        settings_help = (
            "show PyTorch settings instead: determinism, precision, generators, threads, allocators, "
            "torch.compile, and what each thread has set for itself"
        )
        parser.add_argument("--settings", action="store_true", help=settings_help)
        memory_help = (
            "show tensor memory instead: storages and bytes by dtype, the largest storages with the names of module "
            "parameters, and the statistics of CUDA's caching allocator"
        )
        parser.add_argument("--memory", action="store_true", help=memory_help)
        script_help = "with --settings: write a Python script that applies the same settings"
        parser.add_argument("--reproduce", metavar="FILE", help=script_help)

    def run(self, session: Session, args: Namespace, host: ToolHost) -> Report:
        """Read the facts, settings or memory. Raises NotTorch without torch for the latter two."""
        if args.settings:
            session, settings = session.read_at_one_moment(lambda session: read_settings(session, args.reproduce))
            if args.reproduce:
                settings_view.write(args.reproduce, settings)
            return make_report(self, session, args, sections=(settings,))
        if args.reproduce:
            raise UsageError("--reproduce needs --settings", help="dispatch-info --settings --reproduce FILE")
        if args.memory:
            session, memory = session.read_at_one_moment(read_memory)
            return make_report(self, session, args, sections=(memory,))
        session, info = session.read_consistently(read_target_info)
        return make_report(self, session, args, errors=dispatcher_errors(session), sections=(info,))

    def view(self, report: Report, style: Style) -> Iterator[str]:
        """The lines of the one section of the report."""
        if report.find_section(held_memory.MemorySection):
            return held_memory.render(report, style)
        if report.find_section(SettingsSection):
            return settings_view.render(report, style)
        return render(report, style)


_MEASURE_EPILOG = """\
DIR is the folder of the installed package, the one that holds include/ and lib/:

  python3 -c 'import torch; print(torch.__path__[0])'

Measuring needs g++ and pyelftools, takes half a minute, and does not start PyTorch. The result is written to the folder
from which your own inspections read layouts, under the build-id of libtorch_cpu.so; the file can be copied to the same
folder on another machine.
"""


class MeasureProgram(Program):
    """The program ``scripts/dispatch measure`` as a tool."""

    common = ("--json",)

    def arguments(self, parser: ArgumentParser) -> None:
        parser.epilog = _MEASURE_EPILOG
        parser.add_argument("torch", metavar="DIR", type=Path, help="the installed torch package")

    def main(self, argv: Sequence[str], dispatch: Dispatch, color: bool) -> Outcome:
        """Measure, and store the layout for later inspections. Raises LayoutError, UsageError."""
        args = self.parse(argv)
        library = args.torch.resolve() / "lib" / store.TORCH_LIBRARY
        build_id = build_id_of_file(library) if library.is_file() else None
        if not build_id:
            raise UsageError(f"{library} is not a library of PyTorch", help="dispatch measure --help")
        layout = measurement.measure_torch(str(library), build_id)
        path = store.path_of_measured(build_id)
        if args.json:
            return Outcome(0, shown_json(json.dumps({"id": layout.id, "file": path})) + "\n")
        return Outcome(0, f"Measured {layout.id}.\nInspections of this build will use {path}\n")
