"""``dispatch-info`` as text.

Which of the names that are assumed of torch's libraries a process has.

Which of the assumed symbols the torch in a process has.

What ``dispatch-info`` reports: the parts of the process that matter here, and how each was identified.

Collects what ``dispatch-info`` reports: the parts of the process that matter here, and how each was identified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from gdbext.diagnosis.report import Report
from gdbext.diagnosis.reporting import torch_version
from gdbext.engine.formats.symbol_index import SymbolIndex
from gdbext.engine.layouts.store import is_before, newest_release
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.system import linux
from gdbext.engine.vocabulary import Section, counted, json_member
from gdbext.errors import GdbextError, SymbolFileError
from gdbext.known.package_versions import libc_version
from gdbext.render import Style, escape
from gdbext.torch.assumed_symbols import TORCH_SYMBOLS
from gdbext.torch.torch_symbol import NameKind, TorchSymbol

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.vocabulary import Hexadecimal, Inline


class SymbolStatus(Enum):
    """The result of checking an assumption in one process."""

    FOUND = "found"
    MISSING = "missing"
    NOT_LOADED = "library not loaded"
    UNREADABLE = "library's symbols cannot be read"
    OTHER_RELEASE = "not of this release"
    UNOPTIMIZED_ONLY = "only in code that is compiled without optimisation"

    @property
    def counts(self) -> bool:
        """True if it could be found: the library is there, and release builds have the symbol."""
        return self in (SymbolStatus.FOUND, SymbolStatus.MISSING)


@dataclass(frozen=True)
class SymbolCheck:
    """One assumption: any one of ``names`` in ``library``; ``lost`` is what cannot be done without it, ``first`` and
    ``last`` are the versions of torch between which it is known."""

    id: str
    symbol: Inline[TorchSymbol]
    status: SymbolStatus


@dataclass(frozen=True)
class SymbolChecks:
    """All assumptions, in the order of the table."""

    rows: tuple[SymbolCheck, ...]

    @json_member(after="")
    def found(self) -> int:
        """Number of symbols that were found."""
        return sum(row.status is SymbolStatus.FOUND for row in self.rows)

    @json_member(after="found")
    def assumed(self) -> int:
        """Number of symbols that could be found."""
        return sum(row.status.counts for row in self.rows)

    @property
    def missing(self) -> tuple[SymbolCheck, ...]:
        """The ones that were not."""
        return tuple(row for row in self.rows if row.status is SymbolStatus.MISSING)


def check_symbols(symbolizer: Symbolizer, version: str) -> SymbolChecks:
    """Each row of the table, looked up in its library. What is not there, and was never seen in a release like
    ``version``, is no loss."""
    newest = newest_release()
    rows = (
        SymbolCheck(
            name.lower(), row._replace(last=row.last or newest), in_release(row, status(row, symbolizer), version)
        )
        for name, row in TORCH_SYMBOLS.items()
    )
    return SymbolChecks(tuple(rows))


def in_release(symbol: TorchSymbol, found: SymbolStatus, version: str) -> SymbolStatus:
    """The result for that version of torch (``2.13.0+cpu``): what came later is not missing."""
    is_later = found is SymbolStatus.MISSING and is_before(version, symbol.first)
    return SymbolStatus.OTHER_RELEASE if is_later else found


def status(symbol: TorchSymbol, symbolizer: Symbolizer) -> SymbolStatus:
    """Check whether one assumption holds; a family without its examples is searched for."""
    if symbol.unoptimized:
        return SymbolStatus.UNOPTIMIZED_ONLY
    library = symbol.library or None
    module = symbolizer.modules.named(library) if library else None
    if library and not module:
        return SymbolStatus.NOT_LOADED
    index = symbolizer.index(module) if module else None
    if library and not index:
        return SymbolStatus.UNREADABLE
    try:
        return SymbolStatus.FOUND if _is_in(symbol, symbolizer, index) else SymbolStatus.MISSING
    except SymbolFileError:
        return SymbolStatus.UNREADABLE


def _is_in(symbol: TorchSymbol, symbolizer: Symbolizer, index: SymbolIndex | None) -> bool:
    """True if there is such a symbol. Raises SymbolFileError where that cannot be known."""
    exact = symbol.names if symbol.kind is NameKind.SYMBOL else symbol.examples
    if any(symbolizer.search(name, symbol.library or None) for name in exact):
        return True
    families = () if symbol.kind is NameKind.SYMBOL else symbol.beginnings
    return index is not None and any(index.has_beginning(name) for name in families)


@dataclass(frozen=True)
class LayoutInfo:
    """The torch layout in use. ``made_from`` says what it was measured on ("version", "compiler", …)."""

    id: str
    match: str
    made_from: Mapping[str, object]


@dataclass(frozen=True)
class TorchInfo:
    """PyTorch; ``layout`` and ``operators`` (how many are registered) are None where they are not known, ``symbols``
    says which of the assumed names its libraries have."""

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
    """The C library; ``version`` is None where its banner cannot be read."""

    path: str
    version: str | None


@dataclass(frozen=True)
class ModuleInfo:
    """A mapped ELF file that matters here or cannot be used."""

    path: str
    status: str
    problem: str | None
    build_id: str | None
    base: Hexadecimal


@dataclass(frozen=True)
class TargetInfo(Section):
    """Everything; a part that is not there, or cannot be read, is None."""

    name: ClassVar[str] = "info"
    threads: int
    torch: TorchInfo | None
    python: PythonInfo | None
    libc: LibcInfo | None
    modules: tuple[ModuleInfo, ...]
    environment: Mapping[str, str]
    """Environment variables that change what torch, OpenMP, NCCL or Python do, as the process was started with."""


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

_WORD = (1 << 64) - 1
"""A module's base is what is added to the file's addresses, modulo 2**64: a file may be linked above its place."""


def read_target_info(session: Session) -> TargetInfo:
    """Everything; what cannot be read is None, and is among the session's errors."""
    return TargetInfo(
        threads=len(session.target.memory.threads()),
        torch=_torch(session),
        python=_python(session),
        libc=_libc(session.modules),
        modules=tuple(_module(module) for module in session.modules.modules if _listed(module)),
        environment=linux.shown(session.target.origin.environ()),
    )


def _torch(session: Session) -> TorchInfo | None:

    version = torch_version(session)
    if not version:
        return None
    layout = session.layout_if_known
    info = LayoutInfo(layout.id, layout.match, dict(layout.provenance)) if layout else None
    return TorchInfo(version, info, _operators(session), check_symbols(session.symbolizer, version))


def _operators(session: Session) -> int | None:
    """Number of operators that are registered."""
    if session.dispatcher_error:
        return None
    try:
        return len(session.dispatcher.entries)
    except GdbextError as error:
        session.errors.note(error, "operators")
        return None


def _python(session: Session) -> PythonInfo | None:
    python = session.python
    if not python:
        return None
    return PythonInfo(python.version, python.module.path, sum(map(len, session.python_threads.states.values())))


def _libc(modules: ModuleTable) -> LibcInfo | None:
    module = modules.named("libc.so.6")
    return LibcInfo(module.path, libc_version(module)) if module else None


def _listed(module: Module) -> bool:
    named = any(module.name == name or module.name.startswith(_versioned(name)) for name in LIBRARIES)
    return named or (_is_code(module) and module.status not in ("ok", "memory"))


def _is_code(module: Module) -> bool:
    """A library or a program; in a core, other mapped files (locales, fonts) may look like modules."""
    return ".so" in module.name or any("x" in mapping.permissions for mapping in module.mappings)


def _versioned(name: str) -> str:
    """The beginning of a versioned library's name: Debian's is libtorch_cpu.so.1.13.0, a wheel's
    libgomp-a34b3233.so.1."""
    return f"{name}." if ".so" in name else name


def _module(module: Module) -> ModuleInfo:
    return ModuleInfo(module.path, module.status, module.problem or None, module.build_id, module.base & _WORD)


def render(report: Report, style: Style) -> Iterator[str]:
    """The lines of the report, one for each fact."""
    info = report.section(TargetInfo)
    target = report.target
    if target:
        kind = "core dump of process" if target.kind == "core" else "process"
        how = "no debugger" if target.debugger == "none" else escape(target.debugger)
        yield style(f"{kind} {target.pid}, {counted(info.threads, 'thread')}, through {how}", "bold")
    yield from _torch_lines(info.torch, report.why, style)
    yield _python_lines(info.python)
    yield _libc_lines(info.libc)
    yield from _modules(info.modules, style)
    yield from _environment(info.environment)


def _torch_lines(torch: TorchInfo | None, why: bool, style: Style) -> Iterator[str]:
    if not torch:
        yield "torch     not loaded"
        return
    yield f"torch     {escape(torch.version)}"
    layout = torch.layout
    if not layout:
        yield "layout    none"
    else:
        origin = f"measured on {layout.made_from.get('version')}, {layout.made_from.get('compiler')}"
        yield f"layout    {layout.id}, match {layout.match} ({origin})"
    if torch.operators is not None:
        yield f"operators {torch.operators} registered"
    yield from _symbol_lines(torch.symbols, why, style)


def _symbol_lines(checks: SymbolChecks, why: bool, style: Style) -> Iterator[str]:
    """Lines on how many of the assumed symbols are there, and which are not; with ``why`` each of them."""
    line = f"symbols   {checks.found} of {checks.assumed} assumed symbols found"
    yield line if 0 < checks.found == checks.assumed else style(line, "yellow")
    for row in checks.rows if why else checks.missing:
        symbol = row.symbol
        library = symbol.library or "any library"
        yield f"          {row.status.value}: {symbol.names[0]}  {library} (known from {symbol.first} to {symbol.last})"
        yield f"            {symbol.purpose}; lost without it: {symbol.lost}"


def _python_lines(python: PythonInfo | None) -> str:
    if not python:
        return "python    none that can be read"
    return f"python    {python.version}, {counted(python.thread_states, 'thread state')}  {escape(python.module)}"


def _libc_lines(libc: LibcInfo | None) -> str:
    if not libc:
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
