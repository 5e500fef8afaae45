"""Chooses the layout by which the dispatcher is read: by build-id, by version with a probe, a measured one, or none."""

from __future__ import annotations

import os
import re
from stat import S_ISDIR
from typing import TYPE_CHECKING

from gdbext.engine.layouts import store
from gdbext.engine.layouts.declarations import required_in
from gdbext.engine.layouts.validate import unusable
from gdbext.engine.process.memory import Memory
from gdbext.errors import GdbextError, LayoutError, NotTorch
from gdbext.log import logger
from gdbext.torch import structures
from gdbext.torch.layout_probe import Probe
from gdbext.torch.values import value_structures

if TYPE_CHECKING:
    from typing import Callable, Optional

    from gdbext.engine.layouts import AnyPath, Layout
    from gdbext.engine.process.modules import Module, ModuleTable
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.targets.host_files import HostFiles

    Measure = Callable[[str, Optional[str]], Layout]
    """The layout of the PyTorch that a libtorch_cpu.so with that build-id belongs to. Raises LayoutError."""

_KEPT = "torch layout"
_EXTENSION = re.compile(r"/torch/_C\.[^/]*\.so$")
_log = logger(__name__)


def torch_layout(
    modules: ModuleTable,
    memory: Memory,
    symbolizer: Symbolizer,
    find_dispatcher: Callable[[], int],
    file: str | None = None,
    folder: AnyPath | None = None,
    measure: Measure | None = None,
) -> Layout:
    """The layout for the PyTorch in the target, from the layout files in ``folder``, by default those that are
    shipped for the architecture of the process.

    In this order: ``file`` if the user named one; the file measured on this very build ("exact", or "generated" where
    that was done on this machine and the live structures do not contradict it); a shipped one of the same release whose
    probe passes ("probed"), or, where the target's release is newer than all, of the newest one, whose probe must then
    prove more; one that ``measure`` makes now of the headers beside the library; a shipped one of the same minor
    version whose probe passes. A probe asks ``find_dispatcher`` for the address of the c10::Dispatcher.

    Raises NotTorch, and LayoutError with every candidate and why it was refused.
    """
    module = modules.named(store.TORCH_LIBRARY)
    if not module:
        raise NotTorch("no PyTorch is loaded in this process")
    folder = store.data_of(memory.architecture.name) if folder is None else folder
    candidates = _Candidates(modules, memory, symbolizer, find_dispatcher)
    if file is not None:
        return candidates.named(file, module)
    exact = candidates.made_here(candidates.of_build(module, folder)) or _kept(module, modules.files)
    found = exact or candidates.fitting(module, folder, measure)
    _log.info("layout %s (%s) for build-id %s", found.id, found.match, module.build_id)
    if candidates.unsound:
        found.unsound = tuple(candidates.unsound)
    if found.match == "generated":
        modules.files.keep(_KEPT, found.text)
    return found


def complete(layout: Layout) -> Layout:
    """The same layout, which has all without which nothing can be said of a dispatcher. Raises LayoutError."""
    layout.require(required_in(structures, value_structures))
    count, entry = layout.constant("num_runtime_entries"), structures.KernelFunctionStruct.shape(layout).size
    table = structures.OperatorEntry.dispatchTable_.checked(layout).size
    if count * entry != table:
        what = f"{count} runtime entries do not make a dispatch table of {table} bytes"
        raise unusable(f"layout {layout.id}", what)
    return layout


class _Candidates:
    """Layouts that were not measured on this very build, tried in turn on the target."""

    def __init__(
        self, modules: ModuleTable, memory: Memory, symbolizer: Symbolizer, find_dispatcher: Callable[[], int]
    ) -> None:
        self._modules = modules
        self._memory = memory
        self._symbolizer = symbolizer
        self._find_dispatcher = find_dispatcher
        self._refused: list[str] = []
        self.unsound: list[LayoutError] = []
        self._headers_are_others = False

    def of_build(self, module: Module, folder: AnyPath) -> Layout | None:
        """The one that was measured on this very build; a file that is unsound costs no more than itself."""
        try:
            found = store.by_build_id(module.build_id, folder)
            return found and complete(found)
        except LayoutError as error:
            self._pass_over(error)
            return None

    def _pass_over(self, error: LayoutError) -> None:
        if error.what not in self._refused:
            self._refused.append(error.what)
            self.unsound.append(error)

    def made_here(self, layout: Layout | None) -> Layout | None:
        """A layout by its build-id; None for one that was measured on this machine, but on headers that are not those
        of the library: it was built by somebody who changed them, or they were changed since."""
        if not layout or layout.match != "generated":
            return layout
        try:
            self._find_dispatcher()
        except GdbextError:
            return layout  # there is nothing to hold it against
        reason = self._why_not(layout)
        if not reason:
            return layout
        self._headers_are_others = True
        self._refused.append(
            f"{layout.id}, measured here, does not fit ({reason}): the headers beside libtorch_cpu.so are not its own "
            f"(put them right, then remove it from {store.layout_cache()})"
        )
        return None

    def fitting(self, module: Module, folder: AnyPath, measure: Measure | None) -> Layout:
        """The first that fits. Raises LayoutError."""
        version = torch_version(self._modules)
        same = store.of_release(version, folder)
        found = self._probed(same) or self._probed(store.nearest_older(version, folder), other_minor=True)
        found = found or self._measured(module, measure)
        found = found or self._probed([path for path, _ in store.by_version(version, folder) if path not in same])
        if not found:
            raise LayoutError(
                f"no layout for PyTorch {version or 'of unknown version'} (build-id {module.build_id or 'unknown'}): "
                + "; ".join(self._refused or ["none of this minor version is shipped"])
            )
        return found

    def named(self, file: str, module: Module) -> Layout:
        """The one that the user wants. Raises LayoutError."""
        layout = complete(store.load(file, full=True))
        if module.build_id and layout.build_ids.get(store.TORCH_LIBRARY) == module.build_id:
            return layout
        reason = self._why_not(layout)
        if reason:
            raise LayoutError(f"{file} does not fit this process: {reason}")
        layout.match = "probed"
        return layout

    def _probed(self, paths: list[str], other_minor: bool = False) -> Layout | None:
        for path in paths:
            try:
                layout = complete(store.shipped(path))
            except LayoutError as error:
                self._pass_over(error)
                continue
            reason = self._why_not(layout, other_minor)
            if not reason:
                return layout
            self._refused.append(f"{layout.id} does not fit ({reason})")
        return None

    def _why_not(self, layout: Layout, other_minor: bool = False) -> str:
        probe = Probe(self._memory, self._modules, self._symbolizer, layout, self._find_dispatcher)
        reason = probe.run(other_minor)
        layout.evidence = tuple(probe.evidence)
        return reason

    def _measured(self, module: Module, measure: Measure | None) -> Layout | None:
        if not measure or self._headers_are_others:
            return None
        package = _package(module)
        files = self._modules.files
        if not package or not module.image or not files.are_here or not _is_folder(package, files):
            self._refused.append(f"none can be measured: the file {module.path} is not the one in memory or not here")
            return None
        try:
            return self.made_here(complete(measure(module.image.path, module.build_id)))
        except LayoutError as error:
            self._refused.append(f"none can be measured: {error.what}")
            return None


def _is_folder(path: str, files: HostFiles) -> bool:
    try:
        return S_ISDIR(files.foreign.status(path).st_mode)
    except OSError:
        return False


def _kept(module: Module, files: HostFiles) -> Layout | None:
    """The layout that was generated on the machine of a recording."""
    text = files.kept(_KEPT)
    layout = complete(store.parse(text, "the recording", "generated")) if text else None
    return layout if layout and layout.build_ids.get(store.TORCH_LIBRARY) == module.build_id else None


def torch_version(modules: ModuleTable) -> str:
    """The version as torch.__version__ has it, "" when it cannot be known.

    From torch/version.py (or the dist-info folder) beside the library, parsed as text, provided that the
    library there is the one in memory; else beside the extension torch/_C, for distributions (conda-forge, Debian) keep
    the libraries in a folder of the system.
    """
    module = modules.named(store.TORCH_LIBRARY)
    if not module:
        return ""
    folder = _package(module)
    version = store.torch_version(folder, modules.files)[0] if folder is not None else ""
    return version or _version_of_name(module.name) or _version_of_extension(modules)


def _version_of_extension(modules: ModuleTable) -> str:
    for module in modules.modules:
        if module.image and module.status == "ok" and _EXTENSION.search(module.image.path):
            return store.torch_version(os.path.dirname(module.image.path), modules.files)[0]
    return ""


def _version_of_name(name: str) -> str:
    """1.13.0 of Debian's libtorch_cpu.so.1.13.0, whose Python files lie elsewhere; "" of a wheel's library."""
    found = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", name)
    return found.group(1) if found else ""


def _package(module: Module) -> str | None:
    """site-packages/torch of the library, as we can open it; None when the file is not the one in memory."""
    if not module.image or module.status != "ok":
        return None
    path = module.image.path
    return store.package_of(path) if path.startswith("/") else None
