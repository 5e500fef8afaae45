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

    Measure = Callable[[str, Optional[str]], Layout]
    """The layout of the PyTorch that a libtorch_cpu.so with that build-id belongs to. Raises LayoutError."""

_RECORDED = "torch layout"
"""The name under which a recording keeps a layout that was generated on its machine."""
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
    """The layout for the PyTorch in the target, from the layout files in ``folder``, by default those that are shipped
    for the architecture of the process.

    In this order: ``file`` if the user named one; the file measured on this very build ("exact", or "generated" if it
    was measured on this machine and the live structures do not contradict it); a shipped one of the same release whose
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
    layout = candidates.of_build(module, folder)
    recorded = "" if layout else modules.files.stored_text(_RECORDED)
    if recorded:
        layout = complete(store.parse(recorded, "the recording", "generated"))
        if layout.build_ids.get(store.TORCH_LIBRARY) != module.build_id:
            layout = None
    layout = layout or candidates.fitting(module, folder, measure)
    _log.info("layout %s (%s) for build-id %s", layout.id, layout.match, module.build_id)
    if candidates.unsound:
        layout.unsound = tuple(candidates.unsound)
    if layout.match == "generated":
        modules.files.store_text(_RECORDED, layout.text)
    return layout


def complete(layout: Layout) -> Layout:
    """The same layout, if it has every member that reading a dispatcher needs. Raises LayoutError."""
    layout.require(required_in(structures, value_structures))
    count, entry = layout.constant("num_runtime_entries"), structures.KernelFunctionStruct.shape(layout).size
    table = structures.OperatorEntry.dispatchTable_.checked(layout).size
    if count * entry != table:
        what = f"{count} runtime entries do not make a dispatch table of {table} bytes"
        raise unusable(f"layout {layout.id}", what)
    return layout


class _Candidates:
    """Layouts, tried in turn on the target; ``unsound`` are the errors of layout files that cannot be used."""

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
        """The layout that was measured on this very build; a file that is unsound costs no more than itself."""
        try:
            layout = store.by_build_id(module.build_id, folder)
            return layout and self._checked_if_generated(complete(layout))
        except LayoutError as error:
            self._pass_over(error)
            return None

    def _pass_over(self, error: LayoutError) -> None:
        if error.what not in self._refused:
            self._refused.append(error.what)
            self.unsound.append(error)

    def _checked_if_generated(self, layout: Layout) -> Layout | None:
        """The layout; None if it was measured on this machine, but on headers that are not the library's: its builder
        changed them, or they were changed since."""
        if layout.match != "generated":
            return layout
        try:
            self._find_dispatcher()
        except GdbextError:
            return layout  # no live structure can contradict it
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
        """The first layout of another build that fits. Raises LayoutError."""
        version = torch_version(self._modules)
        same = store.of_release(version, folder)
        layout = (
            self._probed(same)
            or self._probed(store.nearest_older(version, folder), other_minor=True)
            or self._measured(module, measure)
            or self._probed([path for path, _ in store.by_version(version, folder) if path not in same])
        )
        if not layout:
            raise LayoutError(
                f"no layout for PyTorch {version or 'of unknown version'} (build-id {module.build_id or 'unknown'}): "
                + "; ".join(self._refused or ["none of this minor version is shipped"])
            )
        return layout

    def named(self, file: str, module: Module) -> Layout:
        """The layout in the file that the user named. Raises LayoutError."""
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
        try:
            is_folder = bool(package and S_ISDIR(files.foreign.status(package).st_mode))
        except OSError:
            is_folder = False
        if not module.image or not files.are_here or not is_folder:
            self._refused.append(f"none can be measured: the file {module.path} is not the one in memory or not here")
            return None
        try:
            return self._checked_if_generated(complete(measure(module.image.path, module.build_id)))
        except LayoutError as error:
            self._refused.append(f"none can be measured: {error.what}")
            return None


def torch_version(modules: ModuleTable) -> str:
    """The version as torch.__version__ has it, "" if it cannot be known.

    From torch/version.py (or the dist-info folder) beside the library, parsed as text, provided that the library there
    is the one in memory; else from the library's name (Debian's libtorch_cpu.so.1.13.0); else from beside the extension
    torch/_C, for distributions (conda-forge, Debian) keep the libraries in a folder of the system.
    """
    module = modules.named(store.TORCH_LIBRARY)
    if not module:
        return ""
    folder = _package(module)
    version = store.torch_version(folder, modules.files)[0] if folder is not None else ""
    if version:
        return version
    in_name = re.search(r"\.so\.(\d+\.\d+(?:\.\d+)?)$", module.name)
    if in_name:
        return in_name.group(1)
    for extension in modules.modules:
        if extension.image and extension.status == "ok" and re.search(r"/torch/_C\.[^/]*\.so$", extension.image.path):
            return store.torch_version(os.path.dirname(extension.image.path), modules.files)[0]
    return ""


def _package(module: Module) -> str | None:
    """The folder site-packages/torch of the library, as we can open it; None if the file is not the one in memory."""
    if not module.image or module.status != "ok" or not module.image.path.startswith("/"):
        return None
    return store.package_of(module.image.path)
