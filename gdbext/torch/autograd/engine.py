"""The engine that runs backward passes: what each thread runs, and the graph tasks.

Sources: torch/csrc/autograd/engine.h, engine.cpp, graph_task.h, 2.13.0. The engine keeps what a thread does in
thread-local variables; all zero means that it does nothing.
"""

from __future__ import annotations

from functools import cached_property

from gdbext.layouts.layout import Layout
from gdbext.model.record import Record
from gdbext.process.memory import Memory
from gdbext.process.struct_view import StructView
from gdbext.process.symbols import Symbolizer
from gdbext.torch import symbols
from gdbext.torch.autograd.unnamed_variables import UnnamedVariables
from gdbext.torch.state.thread_variable import ThreadVariables
from gdbext.torch.tensors.vtables import ClassNames
from gdbext.torch.torch_symbol import TorchSymbol
from gdbext.torch.values.containers import HashTable, hash_entries, hash_table, vector_span

_TASK = "torch::autograd::GraphTask"
_READY_QUEUE, _NODE_TASK = "torch::autograd::ReadyQueue", "torch::autograd::NodeTask"
_ENGINE, _PYTHON_ENGINE = "torch::autograd::Engine", "torch::autograd::python::PythonEngine"
_QUEUE_LIMIT = 1 << 20
_DEVICES = 128
"""Devices of one engine at most: c10/core/Device.h numbers them by a signed byte."""
_SHARED_POINTER = 16
"""Bytes of a std::shared_ptr: the object's address, and its counts."""
NO_DEVICE, CPU_DEVICE = -2, -1
"""torch/csrc/autograd/graph_task.h"""


class RunningNode(Record):
    """What a thread runs: addresses of a Node and of a GraphTask, 0 for none."""

    node: int
    graph_task: int


class EngineReader:
    """Reads the engine of one torch."""

    def __init__(self, memory: Memory, layout: Layout, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._layout = layout
        self._variables = ThreadVariables(memory, symbolizer)
        self._unnamed = UnnamedVariables(memory, symbolizer)
        self._symbolizer = symbolizer

    def running(self, thread_pointer: int) -> RunningNode:
        """What the thread runs. Raises BadData where torch has no such variables, ThreadLocalUnknown, MemoryFault."""
        node = self._current(thread_pointer, symbols.EVALUATING_NODE, symbols.EVALUATING_NODE_ACCESS)
        return RunningNode(node, self._current(thread_pointer, symbols.GRAPH_TASK, symbols.GRAPH_TASK_ACCESS))

    def _current(self, thread_pointer: int, variable: TorchSymbol, access: TorchSymbol) -> int:
        if self._unnamed.is_named(variable):
            return self._word(thread_pointer, variable)
        module, symbol = self._unnamed.returned_by(access)
        return int.from_bytes(self._variables.of(thread_pointer).read_local(module, symbol, 8) or b"", "little")

    def next_sequence_nr(self, thread_pointer: int) -> int:
        """The number that the thread's next node gets. Raises as ``running``."""
        return self._word(thread_pointer, symbols.SEQUENCE_NUMBER)

    def thread_id(self, thread_pointer: int) -> int:
        """RecordFunction's own number of the thread; 0 for one that never asked for it. Raises as ``running``."""
        return self._word(thread_pointer, symbols.RECORD_FUNCTION_THREAD)

    def _word(self, thread_pointer: int, variable: TorchSymbol) -> int:
        return int.from_bytes(self._variables.of(thread_pointer).read(variable, 8) or b"", "little")

    # --- graph tasks -----------------------------------------------------------------------------

    def task(self, address: int) -> StructView:
        """The GraphTask there. Raises LayoutError."""
        return StructView(self._memory, address, self._layout.struct(_TASK))

    def count(self, address: int, member: str) -> int:
        """The number of elements in a hash table of a graph task. Raises LayoutError, MemoryFault."""
        return self._memory.u64(self._member(address, member) + self._hash_table.elements)

    def waiting(self, address: int) -> tuple[int, ...]:
        """The nodes of a task that wait for the gradients of others. Raises BadData, LayoutError, MemoryFault."""
        table = self._member(address, "dependencies_")
        return tuple(node for (node,) in hash_entries(self._memory, table, self._hash_table, 1, _QUEUE_LIMIT))

    def is_selective(self, address: int) -> bool:
        """The task computes the gradients of some inputs only (torch.autograd.grad): not every node of it is run."""
        return self.count(address, "exec_info_") != 0

    def ready(self, address: int) -> tuple[int, ...]:
        """The nodes in the task's queue for the CPU. Raises BadData, LayoutError, MemoryFault."""
        queue = self._memory.u64(self._member(address, "cpu_ready_queue_"))
        return self.queued(queue) if queue else ()

    def queued(self, queue: int) -> tuple[int, ...]:
        """The nodes in a ReadyQueue, 0 for a task that only wakes its thread up. Raises as ``ready``."""
        task = self._layout.struct(_NODE_TASK)
        heap = queue + self._layout.struct(_READY_QUEUE).offset("heap_")
        first, count = vector_span(self._memory, heap, task.size, _QUEUE_LIMIT)
        return tuple(self._memory.u64(first + index * task.size + task.offset("fn_")) for index in range(count))

    def device_queues(self, engine: int) -> tuple[int, ...]:
        """The ReadyQueue of each device that has threads of its own; 0 for none. Raises as ``ready``."""
        table = engine + self._layout.struct(_ENGINE).offset("device_ready_queues_")
        first, count = vector_span(self._memory, table, _SHARED_POINTER, _DEVICES)
        return tuple(self._memory.u64(first + index * _SHARED_POINTER) for index in range(count))

    def engine(self, classes: ClassNames) -> int:
        """The engine of a program with Python; 0 where it was not used yet, or cannot be found. Raises MemoryFault."""
        found = symbols.PYTHON_ENGINE.address(self._symbolizer)
        return found if found and _PYTHON_ENGINE in classes.of(found) else 0

    def _member(self, task: int, name: str) -> int:
        return task + self._layout.struct(_TASK).offset(name)

    @cached_property
    def _hash_table(self) -> HashTable:
        return hash_table(self._layout)
