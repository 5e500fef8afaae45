"""Session: one stopped target, and the readers of everything in it, each made once and when it is first needed."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING

from gdbext.errors import GdbextError, NotTorch
from gdbext.inspection.attempt import Attempt
from gdbext.inspection.error_log import ErrorLog
from gdbext.inspection.loaded_files import LoadedFiles
from gdbext.process.memory import Memory
from gdbext.targets.base import Target
from gdbext.unwind.unwinder import Unwinder

if TYPE_CHECKING:
    from pathlib import Path

    from gdbext.cpython.objects.functions import PythonFunction
    from gdbext.cpython.threads.runtime import PythonRuntime
    from gdbext.cpython.threads.thread_table import ThreadTable
    from gdbext.cpython.wait_view import PythonWaitView
    from gdbext.inspection.stacks import Stacks
    from gdbext.inspection.threads.thread_snapshots import ThreadSnapshots
    from gdbext.layouts.layout import Layout
    from gdbext.targets.system.procfs import ProcFs
    from gdbext.torch.compile.generated_kernels import GeneratedKernels
    from gdbext.torch.registry.dispatch_table import DispatchTables
    from gdbext.torch.registry.operators import Dispatcher
    from gdbext.torch.registry.redispatch_chain import RedispatchPredictor
    from gdbext.torch.stack.dispatch_stack import DispatchStackReader
    from gdbext.torch.state.dispatch_state_reader import DispatchStateReader
    from gdbext.torch.state.settings_reader import SettingsReader
    from gdbext.torch.state.tensor import TensorReader
    from gdbext.torch.values.key_names import KeyNames
    from gdbext.waits.snapshot import ProcessSnapshot

TORCH_LIBRARY = "libtorch_cpu.so"


class Session:
    """What a command receives. It only wires readers together: what they know is asked of them."""

    def __init__(self, target: Target, layout: Layout | None = None, files: LoadedFiles | None = None) -> None:
        """``layout``: torch's, ``files``: what was mapped, where an earlier look at the process has found them out."""
        self.target = target
        self.memory = Memory(target)
        target.on_change(self.memory.forget)
        self.files = LoadedFiles(target, self.memory, files)
        self.modules = self.files.modules
        self.symbolizer = self.files.symbolizer
        self.unwinder = Unwinder(self.memory, self.modules, self.files.steps)
        self.errors = ErrorLog()
        self._layout = Attempt(self._choose_layout if layout is None else lambda: layout)
        self._dispatcher = Attempt(self._read_dispatcher)

    def reopened(self, target: Target) -> Session:
        """A session of the same process at a later stop: its libtorch, and so the layout, is the same."""
        return Session(target, self.layout)

    def again(self) -> Session | None:
        """A session of another look at the process, None where none is needed: nothing moved during this one."""
        if not self.target.again():
            return None
        return Session(self.target, self.layout_if_known, self.files)

    # --- threads ---------------------------------------------------------------------------------

    @cached_property
    def stacks(self) -> Stacks:
        """Native stacks."""
        from gdbext.inspection.stacks import Stacks

        return Stacks(self.unwinder, self.symbolizer, self.errors)

    @cached_property
    def threads(self) -> ThreadSnapshots:
        """Snapshots of threads."""
        from gdbext.inspection.threads.thread_snapshots import ThreadSnapshots

        dispatch = self.dispatch_stacks if self.has_torch else None
        return ThreadSnapshots(self.target, self._process, self.stacks, self.python_threads, dispatch, self.errors)

    @cached_property
    def _process(self) -> ProcessSnapshot:
        from gdbext.waits.snapshot import ProcessSnapshot

        tids = frozenset(thread.tid for thread in self.target.threads())
        return ProcessSnapshot(
            self.memory,
            self.symbolizer,
            self.modules,
            self.target.pid,
            tids,
            python=self.python_waits,
            outside=self.procfs,
        )

    @cached_property
    def procfs(self) -> ProcFs | None:
        """What the system says about the process; None for a core."""
        from gdbext.targets.system.procfs import ProcFs

        return None if self.target.is_core else ProcFs(self.target.pid, self.target.files, self.memory.architecture)

    # --- Python ----------------------------------------------------------------------------------

    @cached_property
    def python(self) -> PythonRuntime | None:
        """The CPython of the process, None without one or where it cannot be read (see ``errors``)."""
        from gdbext.cpython.threads.runtime import PythonRuntime

        try:
            return PythonRuntime.detect(self.memory, self.modules, self.symbolizer)
        except GdbextError as error:
            self.errors.note(error, "python")
            return None

    @cached_property
    def python_threads(self) -> ThreadTable | None:
        """Thread states and names; None without ``python``."""
        from gdbext.cpython.threads.thread_table import ThreadTable

        return ThreadTable(self.python, self.errors.note) if self.python is not None else None

    @cached_property
    def python_waits(self) -> PythonWaitView | None:
        """What threads wait for, as Python's objects tell it; None without ``python``."""
        from gdbext.cpython.wait_view import PythonWaitView

        return PythonWaitView(self.python_threads, self.errors.note) if self.python_threads is not None else None

    # --- torch -----------------------------------------------------------------------------------

    @property
    def has_torch(self) -> bool:
        """libtorch_cpu.so is mapped."""
        return self.modules.named(TORCH_LIBRARY) is not None

    @property
    def layout(self) -> Layout:
        """The torch layout. Raises NotTorch, LayoutError."""
        return self._layout.get()

    @property
    def layout_if_known(self) -> Layout | None:
        """The torch layout, None where there is none that fits."""
        return self._layout.get() if self._layout.error is None else None

    def _choose_layout(self) -> Layout:
        """Once: before it is refused, a compiler may have run for a minute. Raises NotTorch, LayoutError."""
        if not self.has_torch:
            raise NotTorch("no PyTorch is loaded in this process")
        from gdbext.layouts.select import torch_layout
        from gdbext.torch.registry.singleton import find_singleton

        find_dispatcher = partial(find_singleton, self.memory, self.symbolizer)
        layout = torch_layout(self.modules, self.memory, self.symbolizer, find_dispatcher, measure=_measure_torch)
        for error in layout.unsound:
            self.errors.note(error, "layout")
        return layout

    @property
    def dispatcher(self) -> Dispatcher:
        """The target's dispatcher. Raises NotTorch, LayoutError, TargetError, MemoryFault, BadData."""
        return self._dispatcher.get()

    @property
    def dispatcher_error(self) -> GdbextError | None:
        """Why the dispatcher cannot be read, None where it can."""
        return self._dispatcher.error

    def _read_dispatcher(self) -> Dispatcher:
        layout = self.layout  # without torch nothing of it is imported
        from gdbext.torch.registry.operators import Dispatcher

        return Dispatcher(self.memory, layout, self.symbolizer, self._python_source)

    def _python_source(self, address: int) -> PythonFunction | None:
        return self.python.functions.source(address) if self.python is not None else None

    @cached_property
    def dispatch_stacks(self) -> DispatchStackReader:
        """Reads the dispatcher's frames on stacks; by names alone where the dispatcher cannot be read."""
        from gdbext.torch.stack.dispatch_stack import DispatchStackReader

        tables = self.tables if self.dispatcher_error is None else None
        return DispatchStackReader(self.memory, self.symbolizer, tables, self.errors.note)

    @cached_property
    def tables(self) -> DispatchTables:
        """Registrations and computed tables of the dispatcher's operators. Raises as ``dispatcher`` does."""
        from gdbext.torch.registry.dispatch_table import DispatchTables

        return DispatchTables(self.dispatcher)

    @cached_property
    def chains(self) -> RedispatchPredictor:
        """Redispatches that are expected from a keyset. Raises as ``dispatcher`` does."""
        from gdbext.torch.registry.redispatch_chain import RedispatchPredictor

        return RedispatchPredictor(self.tables)

    @cached_property
    def dispatch_keys(self) -> KeyNames:
        """The dispatch keys of the target's torch, without its dispatcher. Raises NotTorch, LayoutError."""
        from gdbext.torch.values.key_names import KeyNames

        return KeyNames(self.layout)

    @cached_property
    def dispatch_states(self) -> DispatchStateReader:
        """Reads the thread-local state of dispatch. Raises NotTorch, LayoutError."""
        from gdbext.torch.state.dispatch_state_reader import DispatchStateReader

        return DispatchStateReader(self.memory, self.layout, self.symbolizer, self.dispatch_keys, self._python_type)

    @cached_property
    def settings(self) -> SettingsReader:
        """Reads the global settings of torch. Raises NotTorch."""
        from gdbext.torch.state.settings_reader import SettingsReader

        if not self.has_torch:
            raise NotTorch("no PyTorch is loaded in this process")
        return SettingsReader(self.memory, self.symbolizer, self.layout_if_known)

    @cached_property
    def tensors(self) -> TensorReader:
        """Reads tensors. Raises NotTorch, LayoutError."""
        from gdbext.torch.state.tensor import TensorReader

        return TensorReader(self.memory, self.layout, self.symbolizer, self.dispatch_keys)

    @cached_property
    def generated_kernels(self) -> GeneratedKernels:
        """Kernels that Inductor generated and that are loaded. Raises NotTorch without a Python."""
        from gdbext.torch.compile.generated_kernels import GeneratedKernels

        if self.python is None or not self.has_torch:
            raise NotTorch("no PyTorch for Python is loaded in this process")
        return GeneratedKernels(self.python, self.symbolizer)

    def _python_type(self, address: int) -> str | None:
        try:
            return self.python.objects.type_of(address).name if self.python is not None else None
        except GdbextError:
            return None


def _measure_torch(package: Path, build_id: str | None) -> Layout:
    from gdbext.layouts.measure.measurement import measure_torch

    return measure_torch(package, build_id)
