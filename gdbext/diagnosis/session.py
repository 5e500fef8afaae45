"""Session: one stopped target, and the readers of everything in it."""

from __future__ import annotations

from functools import cached_property, partial
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

from gdbext.cpython.objects.py_ref import PyRef
from gdbext.cpython.sync.locks import prepare_walk
from gdbext.cpython.threads.runtime import NO_PYTHON, PythonRuntime, ThreadTable
from gdbext.cpython.wait_view import PythonWaitView
from gdbext.diagnosis.threads.thread_snapshots import StackOwners, Stacks, ThreadSnapshots
from gdbext.diagnosis.waits.add_ons import AddOns
from gdbext.diagnosis.waits.snapshot import ProcessSnapshot
from gdbext.engine.process.memory import Memory, memory_of
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.budget import without_limits
from gdbext.engine.targets.system.procfs import NO_PROCFS, ProcFs
from gdbext.engine.unwind import Unwinder
from gdbext.engine.unwind.frame_steps import FrameSteps
from gdbext.engine.vocabulary import ErrorLog
from gdbext.errors import BadData, GdbextError, MemoryFault, NotTorch, TargetError, UsageError
from gdbext.torch.layout_choice import torch_layout
from gdbext.torch.registry import Dispatcher
from gdbext.torch.registry.dispatch_table import DispatchTables
from gdbext.torch.singleton import find_singleton
from gdbext.torch.stack.dispatch_stack import DispatchStackReader
from gdbext.torch.stack.key_choice import RedispatchPredictor
from gdbext.torch.state.tensor import TensorReader
from gdbext.torch.values.key_names import KeyNames, renamed_backend

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from gdbext.diagnosis.report.thread_report import BackwardNode
    from gdbext.engine.layouts import Layout
    from gdbext.engine.process.modules import Module
    from gdbext.engine.targets.base_target import Target, TargetThread
    from gdbext.engine.unwind import NativeStack
    from gdbext.torch.compile.generated_kernels import GeneratedKernels
    from gdbext.torch.state.dispatch_state_reader import DispatchStateReader
    from gdbext.torch.state.settings_reader import SettingsReader
    from gdbext.torch.values.value_text import Statistics

Made = TypeVar("Made")


class LazyResult(Generic[Made]):
    """The result of ``make``, or its error: called when it is first needed, and cached."""

    def __init__(self, make: Callable[[], Made]) -> None:
        self._make = make
        self._made: list[Made] = []  # the one result, once it was made
        self._error: GdbextError | None = None

    @property
    def error(self) -> GdbextError | None:
        """The reason why there is no result, None if there is one."""
        if not self._made and not self._error:
            try:
                self._made.append(self._make())
            except GdbextError as error:
                self._error = error
        return self._error

    def get(self) -> Made:
        if self.error:
            raise self.error
        return self._made[0]


class LoadedFiles:
    """Modules, their symbols, and the unwinder's steps. ``earlier``: those of another inspection of the same process,
    reused unless a file was mapped or unmapped since."""

    def __init__(self, target: Target, memory: Memory, earlier: LoadedFiles | None = None) -> None:
        known: Sequence[Module] = earlier.modules.modules if earlier else ()
        self.modules: ModuleTable = ModuleTable(target, memory, known)
        self._memory = memory
        self._earlier = earlier if self.modules.modules == known else None

    @cached_property
    def symbolizer(self) -> Symbolizer:
        return self._earlier.symbolizer if self._earlier else Symbolizer(self.modules, self.modules.files.symbols)

    @cached_property
    def steps(self) -> FrameSteps:
        return self._earlier.steps if self._earlier else FrameSteps(self._memory, self.modules)


TORCH_LIBRARY = "libtorch_cpu.so"


class CallCounter(Protocol):
    def total(self) -> int:
        """The number so far. Raises OSError."""

    def close(self) -> None:
        """Stop counting the calls; idempotent."""


class Extras:
    """The additions of tools to the reports of this package; none by default."""

    def __init__(self, offered: Callable[[str], Callable[..., Any] | None] = lambda _: None) -> None:
        """``offered``: name of a method below → the tool's function for it, None if no tool has one."""
        self._offered = offered

    def backward_nodes(
        self, session: Session, thread: TargetThread, stack: NativeStack, levels: Sequence[int]
    ) -> tuple[BackwardNode, ...]:
        """The nodes of autograd's graph that run in a backward pass whose engine is called at these levels."""
        read = self._offered("backward_nodes")
        return read(session, thread, stack, levels) if read else ()

    def call_count(self, session: Session) -> CallCounter | None:
        """Counts the operator calls from now on; None if that is not permitted or not wanted."""
        start = self._offered("call_count")
        return start(session) if start else None

    def tensor_statistics(self, session: Session) -> Callable[[int], Statistics | None]:
        """A function: address of a tensor → its statistics. It raises GdbextError if they cannot be read."""
        make = self._offered("tensor_statistics")
        return make(session) if make else lambda _: None


class Session:
    """One stopped target, and the readers of everything in it, each made once and when it is first needed."""

    def __init__(self, target: Target, layout: Layout | None = None, files: LoadedFiles | None = None) -> None:
        """``layout``: torch's, ``files``: the mapped ones, if an earlier inspection of the process found them."""
        self.target = target
        self.memory = memory_of(target)
        target.moment.on_change(self.memory.forget)
        # What can be read of a running process only while it is stopped.
        target.moment.before_stops(lambda: prepare_walk(target, self.modules, self.symbolizer))
        self.files = LoadedFiles(target, self.memory, files)
        self.modules = self.files.modules
        self.symbolizer = self.files.symbolizer
        self.unwinder = Unwinder(self.memory, self.modules, self.files.steps)
        self.errors = ErrorLog()
        self._layout = LazyResult((lambda: layout) if layout else self._choose_layout)
        self._dispatcher = LazyResult(
            lambda: Dispatcher(self.memory, self.layout, self.symbolizer, lambda at: self.python_object(at).function)
        )
        self.extras = Extras()  # the additions of tools to reports; set by the code that runs tools

    def session_after_stop(self, target: Target) -> Session:
        """A session of the same process at a later stop; it keeps the layout, as libtorch is the same."""
        return Session(target, self.layout)

    def retake(self, in_doubt: bool = False) -> Session | None:
        """A session for another inspection; None if nothing moved meanwhile. ``in_doubt``: data contradict."""
        return self._later() if self.target.moment.retake(in_doubt) else None

    def _later(self) -> Session:
        """A session that reads everything again but the files, whose symbols it shares."""
        later = Session(self.target, self.layout_if_known, self.files)
        later.extras = self.extras
        return later

    def read_consistently(self, read: Callable[[Session], Made]) -> tuple[Session, Made]:
        """(the session, the result of ``read``), repeated with a later session while something moved, because data or
        errors may mix two moments. So ``read`` must not write files or resume the process: do that afterwards."""
        session: Session = self
        while True:
            result: Made | None = None
            failure: GdbextError | None = None
            try:
                result = read(session)
            except (MemoryFault, BadData, UsageError) as error:  # perhaps because something moved
                failure = error
            later = session.retake(in_doubt=failure is not None)
            if later:
                session = later
            elif failure:
                raise failure
            else:
                return session, cast("Made", result)

    def read_at_one_moment(
        self, read: Callable[[Session], Made], marks_threads_that_ran: bool = False
    ) -> tuple[Session, Made]:
        """As read_consistently, for values that the program changes while it runs: all that ``read`` reads is of one
        moment. If threads ran meanwhile, the process is stopped, and everything is read again. If it must not be
        stopped, the result stands if values of threads that ran are marked as unknown in it
        (``marks_threads_that_ran``); else TargetError is raised."""
        moment = self.target.moment
        result: tuple[Session, Made] | None = None
        try:
            result = self.read_consistently(read)
            if not moment.threads_that_ran():
                return result
        except (MemoryFault, BadData, UsageError):
            if not moment.threads_that_ran():
                raise
        if not moment.hold():
            if result and marks_threads_that_ran:
                return result
            raise TargetError(
                f"process {self.target.pid} ran while it was read, so the values are of no one moment",
                why=f"threads that ran: {', '.join(map(str, list(moment.threads_that_ran())[:8]))}",
                help="look again, or leave out --no-stop: the process is then stopped for some milliseconds",
            )
        try:
            later = self._later()
            return later, read(later)
        finally:
            moment.let_go()

    # --- threads ---------------------------------------------------------------------------------

    @cached_property
    def stacks(self) -> Stacks:
        return Stacks(self.unwinder, self.symbolizer, StackOwners(self.target, self.modules, self.memory), self.errors)

    @cached_property
    def threads(self) -> ThreadSnapshots:
        """Takes the snapshots of the target's threads."""
        process = ProcessSnapshot(
            self.memory,
            self.symbolizer,
            self.modules,
            self.target.pid,
            frozenset(thread.tid for thread in self.target.memory.threads()),
            python=self.python_waits,
            procfs=self.procfs,
            add_ons=AddOns(self.errors),
        )
        dispatch = self.dispatch_stacks if self.has_torch else None
        return ThreadSnapshots(self.target, process, self.stacks, self.python_threads, dispatch, self.errors)

    @cached_property
    def procfs(self) -> ProcFs:
        """The kernel's knowledge of the process; NO_PROCFS for a core."""
        if self.target.origin.is_core:
            return NO_PROCFS
        return ProcFs(self.target.pid, self.target.origin.files, self.memory.architecture.syscall_names)

    # --- Python ----------------------------------------------------------------------------------

    @cached_property
    def python(self) -> PythonRuntime:
        """The CPython of the process, NO_PYTHON without one or if it cannot be read (see ``errors``)."""
        tries = 3  # while threads start and exit, its lists may be torn
        for attempt in range(1, tries + 1):
            try:
                return PythonRuntime.detect(self.memory, self.modules, self.symbolizer)
            except GdbextError as error:
                if attempt == tries or self.target.origin.is_core:
                    self.errors.note(error, "python")
                    break
                self.memory.forget()
        return NO_PYTHON

    @cached_property
    def python_threads(self) -> ThreadTable:
        return ThreadTable(self.python, self.errors.note)

    @cached_property
    def python_waits(self) -> PythonWaitView:
        return PythonWaitView(self.python_threads, self.errors.note)

    # --- torch -----------------------------------------------------------------------------------

    @property
    def has_torch(self) -> bool:
        return self.modules.named(TORCH_LIBRARY) is not None

    @property
    def layout(self) -> Layout:
        """The torch layout. Raises NotTorch, LayoutError."""
        return self._layout.get()

    @property
    def layout_if_known(self) -> Layout | None:
        """The torch layout, None if none fits."""
        return None if self._layout.error else self._layout.get()

    def _choose_layout(self) -> Layout:
        """Called once: before it is refused, a compiler may have run for a minute. Raises NotTorch, LayoutError."""
        if not self.has_torch:
            raise NotTorch("no PyTorch is loaded in this process")

        def measure(library: str, build_id: str | None) -> Layout:
            """Measure the layout of a torch build for which no table exists. Raises LayoutError."""
            from gdbext.torch.measure.measurement import measure_torch  # 15 ms, for unknown builds of PyTorch

            with without_limits():  # it has limits of its own
                return measure_torch(library, build_id, None if self.target.origin.is_core else self.target.pid)

        find_dispatcher = partial(find_singleton, self.memory, self.symbolizer)
        layout = torch_layout(self.modules, self.memory, self.symbolizer, find_dispatcher, measure=measure)
        layout = layout.of_process(partial(renamed_backend, self.memory, self.symbolizer, layout))
        for error in layout.unsound:
            self.errors.note(error, "layout")
        return layout

    @property
    def dispatcher(self) -> Dispatcher:
        """The target's dispatcher. Raises NotTorch, LayoutError, TargetError, MemoryFault, BadData."""
        return self._dispatcher.get()

    @property
    def dispatcher_error(self) -> GdbextError | None:
        """The reason why the dispatcher cannot be read, None if it can."""
        return self._dispatcher.error

    @cached_property
    def dispatch_stacks(self) -> DispatchStackReader:
        """Reads the dispatcher's frames on stacks; by names alone if the dispatcher cannot be read."""
        tables = None if self.dispatcher_error else self.tables
        return DispatchStackReader(self.memory, self.symbolizer, tables, self.errors.note)

    @cached_property
    def tables(self) -> DispatchTables:
        """Registrations and computed tables of the dispatcher's operators. Raises as ``dispatcher`` does."""
        return DispatchTables(self.dispatcher)

    @cached_property
    def chains(self) -> RedispatchPredictor:
        """Redispatches that are expected from a keyset. Raises as ``dispatcher`` does."""
        return RedispatchPredictor(self.tables)

    @cached_property
    def dispatch_keys(self) -> KeyNames:
        """The dispatch keys of the target's torch, without its dispatcher. Raises NotTorch, LayoutError."""
        return KeyNames(self.layout)

    @cached_property
    def dispatch_states(self) -> DispatchStateReader:
        """Reads the thread-local state of dispatch. Raises NotTorch, LayoutError."""
        from gdbext.torch.state.dispatch_state_reader import DispatchStateReader  # 6 ms, for few commands

        return DispatchStateReader(
            self.memory,
            self.layout,
            self.symbolizer,
            self.dispatch_keys,
            lambda address: self.python_object(address).type,
        )

    @cached_property
    def settings(self) -> SettingsReader:
        """Reads the global settings of torch. Raises NotTorch."""
        from gdbext.torch.state.settings_reader import SettingsReader  # 5 ms, for few commands

        if not self.has_torch:
            raise NotTorch("no PyTorch is loaded in this process")
        return SettingsReader(self.memory, self.symbolizer, self.layout_if_known)

    @cached_property
    def tensors(self) -> TensorReader:
        return TensorReader(self.memory, self.layout, self.symbolizer, self.dispatch_keys)

    @cached_property
    def generated_kernels(self) -> GeneratedKernels:
        """Kernels that Inductor generated and that are loaded. Raises NotTorch without a Python."""
        from gdbext.torch.compile import dynamo_names, generated_kernels  # 3 ms, for few commands

        if not self.python or not self.has_torch:
            raise NotTorch("no PyTorch for Python is loaded in this process")
        code_cache = self.python.globals_of(dynamo_names.CODE_CACHE)
        return generated_kernels.GeneratedKernels(code_cache, self.symbolizer)

    def python_object(self, address: int) -> PyRef:
        """The Python object at an address that structures of C++ have; missing for 0, and without a Python."""
        return PyRef(self.python, address)
