"""Chooses the torch layout: by build-id, by version with a probe, by generating it here, or not at all."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gdbext.cache import may_fill
from gdbext.errors import LayoutError, NotTorch
from gdbext.layouts import identity, store
from gdbext.layouts.layout import Layout

if TYPE_CHECKING:
    from gdbext.process.memory import Memory
    from gdbext.process.modules import Module, ModuleTable
    from gdbext.process.symbols import Symbolizer
    from gdbext.targets.host_files import HostFiles

_KEPT = "torch layout"
NO_GENERATION = "GDBEXT_GENERATE"
"""Environment variable: 0 forbids to run a compiler when no shipped layout fits."""


def torch_layout(
    modules: ModuleTable,
    memory: Memory,
    symbolizer: Symbolizer,
    file: str | None = None,
    folder: Path = store.DATA,
) -> Layout:
    """The layout for the PyTorch in the target, from the layout files in ``folder``.

    In this order: ``file`` if the user named one; the file measured on this very build ("exact", or "generated"
    where that was done on this machine); a shipped one of the same release whose probe passes ("probed"); one
    generated now from the headers beside the library; a shipped one of the same minor version whose probe
    passes. Raises NotTorch, and LayoutError with every candidate and why it was refused.
    """
    module = modules.named(store.TORCH_LIBRARY)
    if module is None:
        raise NotTorch("no PyTorch is loaded in this process")
    if file is not None:
        return _named(Path(file), module, modules, memory, symbolizer)
    exact = store.by_build_id(module.build_id, folder) or _kept(module, modules.files)
    found = exact or _fitting(module, modules, memory, symbolizer, folder)
    if found.match == "generated":
        modules.files.keep(_KEPT, found.text)
    return found


def _fitting(
    module: Module, modules: ModuleTable, memory: Memory, symbolizer: Symbolizer, folder: Path
) -> Layout:
    """A layout that was not measured on this very build, or is measured now. Raises LayoutError."""
    version = torch_version(modules)
    refused: list[str] = []
    candidates = store.by_version(version, folder)
    same = [path for path, each in candidates if store.release(each) == store.release(version)]
    found = _probed(same, modules, memory, symbolizer, refused) or _generated(module, modules.files, refused)
    if found is None:
        found = _probed([p for p, _ in candidates if p not in same], modules, memory, symbolizer, refused)
    if found is None:
        raise LayoutError(
            f"no layout for PyTorch {version or 'of unknown version'} (build-id {module.build_id or 'unknown'}): "
            + "; ".join(refused or ["none of this minor version is shipped"])
        )
    return found


def _kept(module: Module, files: HostFiles) -> Layout | None:
    """The layout that was generated on the machine of a recording."""
    text = files.kept(_KEPT)
    layout = store.parse(text, "the recording", "generated") if text else None
    return layout if layout is not None and layout.build_ids.get(store.TORCH_LIBRARY) == module.build_id else None


def torch_version(modules: ModuleTable) -> str:
    """The version as torch.__version__ has it, "" when it cannot be known.

    From torch/version.py (or the dist-info folder) beside the library, parsed as text, provided that the
    library there is the one in memory.
    """
    module = modules.named(store.TORCH_LIBRARY)
    if module is None:
        return ""
    folder = _package(module)
    version = identity.torch_version(folder, modules.files)[0] if folder is not None else ""
    return version or _version_of_name(module.name)


def _version_of_name(name: str) -> str:
    """1.13.0 of Debian's libtorch_cpu.so.1.13.0, whose Python files lie elsewhere; "" of a wheel's library."""
    found = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", name)
    return found.group(1) if found else ""


def _package(module: Module) -> Path | None:
    """site-packages/torch of the library, as we can open it; None when the file is not the one in memory."""
    if module.image is None or module.status != "ok":
        return None
    path = Path(module.image.path)
    return path.parent.parent if path.is_absolute() else None


def _named(file: Path, module: Module, modules: ModuleTable, memory: Memory, symbolizer: Symbolizer) -> Layout:
    layout = store.load(file, full=True)
    if module.build_id and layout.build_ids.get(store.TORCH_LIBRARY) == module.build_id:
        return layout
    reason = _why_not(layout, modules, memory, symbolizer)
    if reason:
        raise LayoutError(f"{file} does not fit this process: {reason}")
    layout.match = "probed"
    return layout


def _probed(
    paths: list[Path], modules: ModuleTable, memory: Memory, symbolizer: Symbolizer, refused: list[str]
) -> Layout | None:
    for path in paths:
        try:
            layout = store.load(path, "probed", full=True)
        except LayoutError as error:
            refused.append(error.what)
            continue
        reason = _why_not(layout, modules, memory, symbolizer)
        if not reason:
            return layout
        refused.append(f"{layout.id} does not fit ({reason})")
    return None


def _why_not(layout: Layout, modules: ModuleTable, memory: Memory, symbolizer: Symbolizer) -> str:
    from gdbext.layouts.probe import Probe

    probe = Probe(memory, modules, symbolizer, layout)
    reason = probe.run()
    layout.evidence = tuple(probe.evidence)
    return reason


def _generated(module: Module, files: HostFiles, refused: list[str]) -> Layout | None:
    """A layout measured now on the headers beside the library, kept in the cache under the library's build-id."""
    if os.environ.get(NO_GENERATION) == "0":
        refused.append(f"generating one is forbidden ({NO_GENERATION}=0)")
        return None
    package = _package(module)
    if package is None or not files.are_here or not package.is_dir():
        refused.append(f"none can be generated: the file {module.path} is not the one in memory or not here")
        return None
    if package.parts[:2] == ("/", "proc"):  # its libc10.so would be run here, with our rights, out of its container
        refused.append("none can be generated for a process in another root (a container): do it in there")
        return None
    from gdbext.layouts import validate
    from gdbext.layouts.measure import generate

    if sys.stderr.isatty():
        print(f"gdbext: measuring the layout of {package} (once, up to a minute) ...", file=sys.stderr, flush=True)
    try:
        document = generate.torch_document(package)
        validate.check_all(document, "the generated layout")
    except (LayoutError, OSError) as error:
        refused.append(f"none can be generated: {error}")
        return None
    layout = Layout(document, "generated")
    if not module.build_id or layout.build_ids.get(store.TORCH_LIBRARY) != module.build_id:
        refused.append("none can be generated: the installed library is not the one in memory")
        return None
    try:
        if may_fill(str(store.layout_cache())):
            generate.write(document, store.layout_cache() / f"{module.build_id}.json")
    except OSError as error:
        print(f"gdbext: cannot keep the layout: {error}", file=sys.stderr)
    return layout
