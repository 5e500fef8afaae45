"""The engine that runs backward passes: what each thread runs, and the graph tasks.

Sources: torch/csrc/autograd/engine.h, engine.cpp, graph_task.h, 2.13.0. The engine keeps what a thread does in
thread-local variables; all zero means that it does nothing.
"""

from __future__ import annotations

from gdbext.layouts.layout import Layout
from gdbext.model.record import Record
from gdbext.process.memory import Memory
from gdbext.process.struct_view import StructView
from gdbext.process.symbols import Symbolizer
from gdbext.torch import symbols
from gdbext.torch.autograd.unnamed_variables import UnnamedVariables
from gdbext.torch.state.thread_variable import ThreadVariables
from gdbext.torch.torch_symbol import TorchSymbol
from gdbext.torch.values.containers import vector_span

_TASK = "torch::autograd::GraphTask"
_READY_QUEUE, _NODE_TASK = "torch::autograd::ReadyQueue", "torch::autograd::NodeTask"
_QUEUE_LIMIT = 1 << 20
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
        table = address + self._layout.struct(_TASK).offset(member)
        return self._memory.u64(table + self._layout.struct("std::unordered_map").offset("_M_h._M_element_count"))

    def ready(self, address: int) -> int:
        """Nodes in the task's queue for the CPU. Raises BadData, LayoutError, MemoryFault."""
        queue = self._memory.u64(address + self._layout.struct(_TASK).offset("cpu_ready_queue_"))
        if not queue:
            return 0
        heap = queue + self._layout.struct(_READY_QUEUE).offset("heap_")
        return vector_span(self._memory, heap, self._layout.struct(_NODE_TASK).size, _QUEUE_LIMIT)[1]
