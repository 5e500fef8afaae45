"""What ``dispatch-info`` tells: the parts of the process that matter here, and how each was identified."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from gdbext.errors import GdbextError

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.process.modules import Module

LIBRARIES = (
    "libtorch_cpu.so", "libtorch_python.so", "libc10.so", "libtorch_cuda.so", "libgomp", "libiomp5", "libc.so.6"
)  # fmt: skip
"""Modules that are always listed; a name without ".so" matches a prefix."""

_VARIABLES = re.compile(
    r"^(TORCH|PYTORCH|ATEN|NCCL|GLOO|CUDA|OMP|MKL|KMP|GOMP|OPENBLAS|UCX|TP_|MASTER_|PYTHON|LD_|MALLOC_|MASTER)"
    r"|^(RANK|LOCAL_RANK|WORLD_SIZE|LOCAL_WORLD_SIZE)$"
)
_LIBC_VERSION = re.compile(rb"GNU C Library[^\n]{0,80}? version (\d+\.\d+)")
_SECRET = re.compile(r"TOKEN|SECRET|PASSWORD|API_KEY|CREDENTIAL", re.IGNORECASE)


def inventory(session: Session) -> dict[str, Any]:
    """Everything as plain JSON values; unknown things are None."""
    return {
        "threads": len(session.target.threads()),
        "torch": _torch(session),
        "python": _python(session),
        "libc": _libc(session),
        "modules": [_module(module) for module in session.modules.modules if _listed(module)],
        "environment": environment(session),
    }


def _torch(session: Session) -> dict[str, Any] | None:
    if not session.has_torch:
        return None
    facts = session.target_facts()
    layout: dict[str, Any] | None = None
    if facts.layout_id is not None:
        layout = {
            "id": facts.layout_id,
            "match": facts.layout_match,
            "made_from": dict(session.layout.provenance),
        }
    operators = None
    if not session.torch_errors():
        try:
            operators = len(session.dispatcher.entries)
        except GdbextError as error:
            session.note_error(error, "operators")
    return {"version": facts.torch_version, "layout": layout, "operators": operators}


def _python(session: Session) -> dict[str, Any] | None:
    python = session.python
    if python is None:
        return None
    return {
        "version": python.version,
        "module": python.module.path,
        "thread_states": sum(len(states) for states in session.thread_states.values()),
    }


def _libc(session: Session) -> dict[str, Any] | None:
    module = session.modules.named("libc.so.6")
    if module is None:
        return None
    return {"path": module.path, "version": _libc_version(module)}


def _libc_version(module: Module) -> str | None:
    """glibc's own banner ("GNU C Library … version 2.36."), a string in its .rodata (csu/version.c)."""
    image = module.image
    section = image.sections.get(".rodata") if image is not None else None
    if image is None or section is None:
        return None
    found = _LIBC_VERSION.search(image.read(section.address, section.size) or b"")
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


def _module(module: Module) -> dict[str, Any]:
    return {
        "path": module.path,
        "status": module.status,
        "problem": module.problem or None,
        "build_id": module.build_id,
        "base": f"{module.base:#x}",
    }


def environment(session: Session) -> dict[str, str]:
    """Environment variables that change what torch, OpenMP, NCCL or Python do, as the process was started with."""
    return {
        name: "(hidden)" if _SECRET.search(name) else value
        for name, value in sorted(session.target.environ().items())
        if _VARIABLES.match(name)
    }
