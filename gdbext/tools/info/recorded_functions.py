"""Callbacks of RecordFunction, the profiler of a thread, and the hooks that saved tensors pass through.

ATen/record_function.{h,cpp}, ATen/SavedTensorHooks.{h,cpp}, c10/util/ThreadLocalDebugInfo.{h,cpp},
torch/csrc/profiler/orchestration/observer.h, 2.13.0.
"""

from __future__ import annotations

from collections.abc import Iterator

from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData
from gdbext.torch import structures
from gdbext.torch.assumed_symbols import CPU
from gdbext.torch.state import setting_sources, setting_structures
from gdbext.torch.state.setting_sources import SettingValue
from gdbext.torch.state.thread_variable import VariablesOfThread
from gdbext.torch.torch_symbol import TorchSymbol
from gdbext.torch.values import value_structures
from gdbext.torch.values.containers import vector_span
from gdbext.torch.values.cpp_objects import ClassNames, plain_class

_LIMIT = 256
_CHAIN = 32


class RecordedFunctions:
    """All methods raise LayoutError, BadData, ThreadLocalUnknown, MemoryFault."""

    def __init__(self, memory: Memory, symbolizer: Symbolizer, layout: Layout) -> None:
        self._memory = memory
        self._symbolizer = symbolizer
        self._layout = layout
        self._space = Space(memory, layout)
        self._classes = ClassNames(memory, symbolizer)

    # --- callbacks -------------------------------------------------------------------------------

    def global_callbacks(self) -> tuple[SettingValue, ...]:
        manager = self._symbolizer.address_of(setting_sources.CALLBACKS, CPU)
        if not manager:
            raise BadData(f"{setting_sources.CALLBACKS} is not found in {CPU}")
        return tuple(self._callbacks(manager + setting_sources.CALLBACKS_VECTOR))

    def thread_callbacks(self, thread: VariablesOfThread) -> tuple[SettingValue, ...]:
        """The callbacks that one thread has added for itself."""
        own = constructed(thread, setting_sources.THREAD_CALLBACKS, setting_sources.THREAD_CALLBACKS_GUARD)
        if not own:
            return ()
        return tuple(self._callbacks(value_structures.RecordFunctionTls(self._space, own).sorted_tls_callbacks_))

    def _callbacks(self, vector: int) -> Iterator[dict[str, SettingValue]]:
        size = setting_structures.RecordFunctionEntry.size(self._space)
        first, count = vector_span(self._memory, vector, size, _LIMIT)
        scope_names = sorted(self._layout.enum("at::RecordScope").items(), key=lambda item: item[1]) if count else []

        def function_name(address: int) -> str | None:
            function = self._symbolizer.function(address) if address else None
            name = function.demangled[0] if function and function.demangled else f"{address:#x}"
            return name if address else None

        for entry in setting_structures.RecordFunctionEntry.array(self._space, first, count):
            callback = entry.callback_
            flags = callback.bytes_of(
                setting_structures.RecordFunctionCallback.scopes_
            )  # the last enumerator counts them
            yield {
                "start": function_name(callback.start_),
                "end": function_name(callback.end_),
                "enabled": entry.enabled_,
                "sampling": callback.sampling_prob_,
                "scopes": tuple(name for name, value in scope_names if value < len(flags) and flags[value]),
            }

    # --- the profiler ----------------------------------------------------------------------------

    def profiler(self, thread: VariablesOfThread) -> dict[str, SettingValue] | None:
        """The profiler of one thread, None if it has none."""
        pointer = constructed(thread, setting_sources.DEBUG_INFO, setting_sources.DEBUG_INFO_GUARD)
        node = self._memory.u64(pointer) if pointer else 0
        for _ in range(_CHAIN):
            if not node:
                return None
            info = setting_structures.DebugInfo(self._space, node)
            state = info.info_
            profiler = self.profiler_state(state) if state else None
            if profiler:
                return profiler
            node = info.parent_info_
        raise BadData(f"the thread's debug info has more than {_CHAIN} parts")

    def profiler_state(self, address: int) -> dict[str, SettingValue] | None:
        """The configuration of a profiler; None for an object of another class."""
        if not any(plain_class(name) in setting_sources.PROFILER_STATES for name in self._classes.of(address)):
            return None
        config = setting_structures.ProfilerState(self._space, address).config_
        names = {value: name for name, value in self._layout.enum("torch::profiler::impl::ProfilerState").items()}
        number = config.state
        if number not in names:
            raise BadData(f"a profiler has the state {number}, which has no name")
        flags = ("report_input_shapes", "profile_memory", "with_stack", "with_flops", "with_modules")
        return {"state": names[number], **{flag: getattr(config, flag) for flag in flags}}

    # --- saved tensors ---------------------------------------------------------------------------

    def saved_tensor_hooks(self, thread: VariablesOfThread) -> tuple[tuple[int, int], ...]:
        """The addresses of the Python functions (pack, unpack) of a thread, outermost first."""
        own = thread.address(setting_sources.SAVED_TENSOR_HOOKS)
        if not own:
            return ()
        stack = value_structures.SavedTensorHooks.stack.field(self._layout)
        size, data = 8, 0  # up to 2.4 a pair of PyObject*; then of c10::SafePyObject, which has an interpreter besides
        if not stack.type.startswith("std::stack<std::pair<_object*"):
            size, data = structures.SafePyObject.size(self._space), structures.SafePyObject.data_.offset(self._space)
        pairs = self._deque(own + stack.offset, 2 * size)
        return tuple((self._memory.u64(at + data), self._memory.u64(at + size + data)) for at in pairs)

    def saved_tensor_hooks_disabled(self, thread: VariablesOfThread) -> bool:
        """torch.autograd.graph.disable_saved_tensors_hooks: there is a message about it."""
        own = thread.address(setting_sources.SAVED_TENSOR_HOOKS)
        if not own:
            return False
        message = value_structures.SavedTensorHooks(self._space, own).disabled_error_message
        return self._memory.u8(message + value_structures.String.size(self._space)) != 0

    def _deque(self, address: int, element: int) -> list[int]:
        """Addresses of the elements, of that many bytes, of a ``std::deque``. Its blocks have 512 bytes
        (bits/stl_deque.h, _GLIBCXX_DEQUE_BUF_SIZE)."""
        deque = value_structures.Deque(self._space, address)
        current, last, node, end = deque.first, deque.block_end, deque.block, deque.end
        elements: list[int] = []
        while current != end:
            if len(elements) == _LIMIT:
                raise BadData(f"the deque at {address:#x} has more than {_LIMIT} elements")
            elements.append(current)
            current += element
            if current == last and current != end:
                node += 8
                current = self._memory.u64(node)
                last = current + 512 // element * element
        return elements


def constructed(thread: VariablesOfThread, variable: TorchSymbol, guard: TorchSymbol) -> int:
    """The address of a function's own thread-local variable; 0 if the thread has not executed its declaration."""
    flags = thread.address(guard)
    if not flags or not thread.memory.u8(flags):
        return 0
    return thread.address(variable)
