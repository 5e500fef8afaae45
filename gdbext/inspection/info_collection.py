"""Collects what ``dispatch-info`` reports: the parts of the process that matter here, and how each was identified."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError
from gdbext.inspection.target_reporting import torch_version
from gdbext.model.hexadecimal import Hexadecimal
from gdbext.model.sections.info_section import LayoutInfo, LibcInfo, ModuleInfo, PythonInfo, TargetInfo, TorchInfo
from gdbext.targets import environment

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.process.modules import Module, ModuleTable

LIBRARIES = (
    "libtorch_cpu.so", "libtorch_python.so", "libc10.so", "libtorch_cuda.so", "libgomp", "libiomp5", "libc.so.6"
)  # fmt: skip
"""Modules that are always listed; a name without ".so" matches a prefix."""

_LIBC_BANNER = b"GNU C Library"
_LIBC_VERSION = re.compile(rb"GNU C Library[^\n]{0,80}? version (\d+\.\d+)")
_LIBC_LINE = 160
"""Bytes that hold the banner's first line."""


def read_target_info(session: Session) -> TargetInfo:
    """Everything; what cannot be read is None, and is among the session's errors."""
    return TargetInfo(
        threads=len(session.target.threads()),
        torch=_torch(session),
        python=_python(session),
        libc=_libc(session.modules),
        modules=tuple(_module(module) for module in session.modules.modules if _listed(module)),
        environment=environment.shown(session.target.environ()),
    )


def _torch(session: Session) -> TorchInfo | None:
    from gdbext.torch.symbol_presence import check_symbols

    version = torch_version(session)
    if version is None:
        return None
    layout = session.layout_if_known
    info = LayoutInfo(layout.id, layout.match, dict(layout.provenance)) if layout is not None else None
    return TorchInfo(version, info, _operators(session), check_symbols(session.symbolizer))


def _operators(session: Session) -> int | None:
    """How many operators are registered."""
    if session.dispatcher_error is not None:
        return None
    try:
        return len(session.dispatcher.entries)
    except GdbextError as error:
        session.errors.note(error, "operators")
        return None


def _python(session: Session) -> PythonInfo | None:
    python = session.python
    if python is None:
        return None
    threads = session.python_threads
    states = sum(map(len, threads.states.values())) if threads is not None else 0
    return PythonInfo(python.version, python.module.path, states)


def _libc(modules: ModuleTable) -> LibcInfo | None:
    module = modules.named("libc.so.6")
    return LibcInfo(module.path, _libc_version(module)) if module is not None else None


def _libc_version(module: Module) -> str | None:
    """glibc's own banner ("GNU C Library … version 2.36."), a string in its .rodata (csu/version.c)."""
    image = module.image
    section = image.sections.get(".rodata") if image is not None else None
    if image is None or section is None:
        return None
    place = image.find(_LIBC_BANNER, section.address, section.address + section.size)
    found = _LIBC_VERSION.match(image.read(place, _LIBC_LINE) or b"") if place is not None else None
    return found.group(1).decode() if found else None


def _listed(module: Module) -> bool:
    named = any(module.name == name or module.name.startswith(_versioned(name)) for name in LIBRARIES)
    return named or (_is_code(module) and module.status not in ("ok", "memory"))


def _is_code(module: Module) -> bool:
    """A library or a program; in a core, other mapped files (locales, fonts) may look like modules."""
    return ".so" in module.name or any("x" in mapping.permissions for mapping in module.mappings)


def _versioned(name: str) -> str:
    """What a library's name may go on from: Debian's is libtorch_cpu.so.1.13.0, a wheel's libgomp-a34b3233.so.1."""
    return f"{name}." if ".so" in name else name


def _module(module: Module) -> ModuleInfo:
    return ModuleInfo(module.path, module.status, module.problem or None, module.build_id, Hexadecimal(module.base))
