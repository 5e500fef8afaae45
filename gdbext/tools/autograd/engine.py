"""Reads the engine that runs backward passes: what each thread runs, and the graph tasks.

Sources: torch/csrc/autograd/engine.h, engine.cpp, graph_task.h, 2.13.0. The engine keeps what a thread does in
thread-local variables, which are zero in idle threads.

In some releases the compiler gave these variables no names of their own. Each is a static variable of a lambda in a
``c10::ThreadLocal`` (c10/util/ThreadLocal.h), which keeps a pointer to the lambda's function; the lambdas of different
files have one name. The function's code shows which variable it returns: its offset among the library's thread-locals.
"""

from __future__ import annotations

from typing import NamedTuple

from gdbext.engine.formats.symbol_table import STT_TLS, Symbol
from gdbext.engine.layouts import Layout
from gdbext.engine.layouts.declarations import Member, Space
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import Module
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.errors import BadData
from gdbext.torch import assumed_symbols
from gdbext.torch.assumed_symbols import UNNAMED_ENGINE_VARIABLES
from gdbext.torch.state.thread_variable import ThreadVariables
from gdbext.torch.structures import Engine, GraphTaskStruct, NodeTask, ReadyQueue
from gdbext.torch.torch_symbol import TorchSymbol
from gdbext.torch.values.containers import hash_entries, hash_table, vector_span
from gdbext.torch.values.cpp_objects import ClassNames

_SHARED_POINTER = 16
"""Bytes of a std::shared_ptr, which the thread-local variables are."""
_QUEUE_LIMIT = 1 << 20
_DEVICES = 128
"""Devices of one engine, at most: c10/core/Device.h numbers them by a signed byte."""
NO_DEVICE, CPU_DEVICE = -2, -1
"""Numbers of devices in torch/csrc/autograd/graph_task.h."""


class RunningNode(NamedTuple):
    """The work of a thread of the engine: addresses of a Node and of a GraphTask, 0 for none."""

    node: int
    graph_task: int


class EngineReader:
    """Reads the engine of one torch."""

    def __init__(self, memory: Memory, layout: Layout, symbolizer: Symbolizer) -> None:
        self._memory = memory
        self._layout = layout
        self._space = Space(memory, layout)
        self._variables = ThreadVariables(memory, symbolizer)
        self._unnamed: dict[str, tuple[Module, Symbol]] = {}
        self._symbolizer = symbolizer

    def running(self, thread_pointer: int) -> RunningNode:
        """The work of the thread. Raises BadData if torch has no such variables, ThreadLocalUnknown, MemoryFault."""
        node = self._current(thread_pointer, assumed_symbols.EVALUATING_NODE, assumed_symbols.EVALUATING_NODE_ACCESS)
        task = self._current(thread_pointer, assumed_symbols.GRAPH_TASK, assumed_symbols.GRAPH_TASK_ACCESS)
        return RunningNode(node, task)

    def _current(self, thread_pointer: int, variable: TorchSymbol, access: TorchSymbol) -> int:
        """The value of the thread-local ``variable``; if it has no name, of the one that the function at ``access``
        returns."""
        if variable.find(self._symbolizer):
            return self._named_variable(thread_pointer, variable)
        name = access.names[0]
        if name not in self._unnamed:
            self._unnamed[name] = self._find_unnamed(access)
        module, symbol = self._unnamed[name]
        return int.from_bytes(self._variables.of(thread_pointer).read_local(module, symbol, 8), "little")

    def _find_unnamed(self, access: TorchSymbol) -> tuple[Module, Symbol]:
        """The thread-local variable that the function at ``access`` returns. Raises BadData, MemoryFault."""
        location, pointer = access.find(self._symbolizer), access.address(self._symbolizer)
        if not location or not pointer:
            raise BadData(f"{access.library} has no {access.names[0]}")
        address = self._memory.u64(pointer)
        function = self._symbolizer.function(address)
        if not function or function.start != address:
            raise BadData(f"there is no function at {address:#x}")
        code = self._memory.read(address, min(function.size, 160))
        module, has_operand = location[0], self._memory.architecture.has_operand
        index = self._symbolizer.index(module)
        candidates = [
            symbol
            for name in UNNAMED_ENGINE_VARIABLES
            for symbol in (index.lookup(name) if index else ())
            if symbol.type == STT_TLS and symbol.size == _SHARED_POINTER and has_operand(code, symbol.vaddr)
        ]
        if len(candidates) != 1:
            raise BadData(f"which variable {access.names[0]} stands for is not seen in its function")
        return module, candidates[0]

    def next_sequence_nr(self, thread_pointer: int) -> int:
        """The number that the thread's next node gets. Raises as ``running``."""
        return self._named_variable(thread_pointer, assumed_symbols.SEQUENCE_NUMBER)

    def thread_id(self, thread_pointer: int) -> int:
        """RecordFunction's own number of the thread; 0 if it never asked for one. Raises as ``running``."""
        return self._named_variable(thread_pointer, assumed_symbols.RECORD_FUNCTION_THREAD)

    def _named_variable(self, thread_pointer: int, variable: TorchSymbol) -> int:
        return int.from_bytes(self._variables.of(thread_pointer).read(variable, 8) or b"", "little")

    # --- graph tasks -----------------------------------------------------------------------------

    def task(self, address: int) -> GraphTaskStruct:
        return GraphTaskStruct(self._space, address)

    def count(self, address: int, table: Member[int]) -> int:
        """The number of elements in a hash table of a graph task. Raises LayoutError, MemoryFault."""
        return self._memory.u64(self.task(address).place(table) + hash_table(self._layout).elements)

    def waiting(self, address: int) -> tuple[int, ...]:
        """The nodes of a task that wait for the gradients of others. Raises BadData, LayoutError, MemoryFault."""
        table = self.task(address).dependencies_
        return tuple(node for (node,) in hash_entries(self._memory, table, hash_table(self._layout), 1, _QUEUE_LIMIT))

    def ready(self, address: int) -> tuple[int, ...]:
        """The nodes in the task's queue for the CPU. Raises BadData, LayoutError, MemoryFault."""
        queue = self.task(address).cpu_ready_queue_
        return self.queued(queue) if queue else ()

    def queued(self, queue: int) -> tuple[int, ...]:
        """The nodes in a ReadyQueue; 0 is a task that only wakes its thread up. Raises as ``ready``."""
        heap = ReadyQueue(self._space, queue).heap_
        first, count = vector_span(self._memory, heap, NodeTask.size(self._space), _QUEUE_LIMIT)
        return tuple(task.fn_ for task in NodeTask.array(self._space, first, count))

    def device_queues(self, engine: int) -> tuple[int, ...]:
        """The ReadyQueue of each device that has threads of its own; 0 for none. Raises as ``ready``."""
        table = Engine(self._space, engine).device_ready_queues_
        first, count = vector_span(self._memory, table, _SHARED_POINTER, _DEVICES)
        return tuple(self._memory.u64(first + index * _SHARED_POINTER) for index in range(count))

    def engine(self, classes: ClassNames) -> int:
        """The engine of a program with Python; 0 if it was not used yet, or cannot be found. Raises MemoryFault."""
        engine = assumed_symbols.PYTHON_ENGINE.address(self._symbolizer)
        return engine if engine and "torch::autograd::python::PythonEngine" in classes.of(engine) else 0
