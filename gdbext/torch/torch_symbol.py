"""The names that are assumed of torch's Python modules, and the type of those of its libraries (assumed_symbols.py).

The Python names were seen in the wheels of 2.0.1, 2.4.1, 2.6.0, 2.10.0, 2.13.0 and 2.15.0 unless noted.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from gdbext.engine.formats.symbol_table import Symbol
    from gdbext.engine.process.modules import Module
    from gdbext.engine.process.symbolizer import Symbolizer
    from gdbext.engine.vocabulary import Internal

CALLS_OF_OPERATORS = ("__call__", "redispatch")
"""The methods of torch.ops.NAME (torch/_ops.py) with ``*args`` and ``**kwargs`` for the dispatcher; without them, what
such a call was given is known from the dispatcher's own frames alone."""
OPERATOR_NAMES = {"OpOverload": "_name", "OpOverloadPacket": "_qualified_op_name"}
"""Classes of torch.ops.NAME → the attribute with the operator's name; without it as above."""
LOADER_FILE = "torch/utils/data/dataloader.py"
"""Its frames on a stack mean that a DataLoader's batch is waited for; without it, that wait has no worker processes."""
LOADER_WORKERS = "_workers"
"""The attribute of _MultiProcessingDataLoaderIter with its worker processes (multiprocessing.Process)."""
LOADER_NEXT, LOADER_TASKS, LOADER_IN_ORDER = "_rcvd_idx", "_task_info", "_in_order"
"""Its attributes with the number of the batch that comes next, and with (worker,) or (worker, batch) of each number
that was asked for; with any order allowed (2.6 and later) every worker may bring the next one."""

LOADER_WORKER = ("worker.py", "_worker_loop")
"""(file, function) of the main function of a DataLoader's worker processes (torch/utils/data/_utils/worker.py)."""

SPAWN_JOINS = (("torch/multiprocessing/spawn.py", "join"),)
"""(file, function) that waits for the processes of torch.multiprocessing.spawn; without it, it waits for pipes."""
SPAWN_PROCESSES = "processes"
"""The attribute of its ``self`` (ProcessContext) with the list of multiprocessing.Process."""

PIN_MEMORY_THREADS = (("pin_memory.py", "_pin_memory_loop"), ("pin_memory.py", "do_one_step"))
"""(file, function) of the main function of the threads of torch/utils/data/_utils/pin_memory.py; without it an idle one
is called a waiting thread."""

DISTRIBUTED = "torch.distributed.distributed_c10d"
"""The module that keeps the process groups; without it, groups are known from the flight recorder alone."""
GROUP_MAP, GROUP_NAMES, GROUP_RANKS = "_pg_map", "_pg_names", "_pg_group_ranks"
"""Its dicts, all by process group: (backend, store), the name, rank in the job → rank in the group."""
TORCH_FILES = "/torch/"
"""Folders in the path of every file of torch's Python code."""
DISTRIBUTED_FILE = "torch/distributed/distributed_c10d.py"
POINT_TO_POINT = {"recv": ("src", "group_src"), "send": ("dst", "group_dst")}
"""Its functions that wait for one other rank: the arguments that name it in the job and in the group (2.6 and later);
without them, such a wait has no peer."""
RPC_FILE, RPC_CALL, RPC_WORKER = "torch/distributed/rpc/api.py", "rpc_sync", "to"
"""The file and the function that call another rank and wait for the answer, and the argument that names its worker;
without them, such a wait is one for a future. Seen in 2.13.0."""
RPC_ASYNC, RPC_FETCH = "rpc_async", "to_here"
"""The other waits for an answer of another rank, for a future and for a remote reference, by the functions that people
call; the agent itself knows which answer it is."""
RPC_CALLS = frozenset({RPC_CALL, RPC_ASYNC, RPC_FETCH})
RPC_SERVER = "pt_thread_pool"
"""The name of the threads that answer such calls (c10/core/thread_pool.cpp); without it, ranks that call each other are
no ring. Seen in 2.13.0."""
UNNUMBERED = ("monitored_barrier",)
"""Its functions that wait for all ranks of a group and that no flight recorder numbers."""

ANOMALY_TRACEBACK = "traceback_"
"""The key of anomaly mode's list of lines (torch/csrc/autograd/python_anomaly_mode.h); without it, nodes have no
forward line. Seen in 2.13.0."""
FUNCTION_FORWARD_CLASS, FUNCTION_FORWARD = "_forward_cls", "forward"
"""Attributes of the class of a torch.autograd.Function's nodes: the Function itself, and of that the method
(torch/autograd/function.py); without them, such a node does not say where its forward is. Seen in 2.13.0."""
MODULE_HOOK, MODULE_HOOKS = "BackwardHook._set_user_hook.<locals>.hook", "user_hooks"
"""The function that calls the full backward hooks of a module, and the attribute of the BackwardHook in its closure
that has them (torch/utils/hooks.py); without them, that function stands for those hooks. Seen in 2.6.0, 2.13.0,
2.15.0."""
ENGINE_CALLERS = ("torch/autograd/__init__.py", "torch/autograd/graph.py")
"""Files of the functions that call autograd's engine."""
TENSOR_CLASS = "torch._C.TensorBase"
"""tp_name of the class that every tensor's class has among its bases (torch/csrc/autograd/python_variable.cpp); before
2.1 it has another one, and no tensors are found. Seen in 2.6.0, 2.13.0, 2.15.0."""
MODULE_CLASS, PARAMETERS, BUFFERS = "Module", "_parameters", "_buffers"
"""The class of torch/nn/modules/module.py, and its dicts by name; without them, the largest tensors have no names."""
MODULE_FILE = "torch/nn/modules/module.py"
"""Its frames on a stack mean that a torch.nn.Module is called."""

DEVICE_MODE = "DeviceContext"
"""The class of the __torch_function__ mode that is a default device (torch/utils/_device.py), with its ``device``."""


ANY_LIBRARY = ""


class NameKind(Enum):
    """The kind of the names in ``TorchSymbol.names``."""

    SYMBOL = "mangled names"
    BEGINNING = "beginnings of mangled names, which templates and overloads go on from"
    FUNCTION = "qualified C++ functions, whatever their arguments"


class TorchSymbol(NamedTuple):
    """A symbol, or a family of symbols, that torch's libraries are assumed to have."""

    names: tuple[str, ...]
    """Spellings of different versions, or functions of one purpose: any one of them will do."""
    library: str
    """The file that defines them; ANY_LIBRARY if every library may."""
    purpose: str
    lost: str
    """What cannot be done without it."""
    kind: Internal[NameKind] = NameKind.SYMBOL
    first: str = "2.0.0"
    last: str = ""
    """The first and the last version that has it, "" for the newest (scripts/check_releases.py, docs/releases.md)."""
    examples: Internal[tuple[str, ...]] = ()
    """Whole mangled names of the family: a look-up finds them at once; the family itself has to be searched for."""
    unoptimized: Internal[bool] = False
    """Release wheels have it inlined; it was found in programs built without optimization."""

    def begins(self, mangled: str) -> bool:
        """True if the mangled name is one of the family's (NameKind.BEGINNING)."""
        return mangled.startswith(self.names)

    def find(self, symbolizer: Symbolizer) -> tuple[Module, Symbol] | None:
        """The library that defines the symbol, and its entry in there; None if no library does."""
        matches = (symbolizer.symbol_of(name, self.library or None) for name in self.names)
        return next(filter(None, matches), None)

    def address(self, symbolizer: Symbolizer) -> int:
        """The symbol's absolute address, 0 if there is none or it is thread-local."""
        addresses = (symbolizer.address_of(name, self.library or None) for name in self.names)
        return next(filter(None, addresses), 0)

    @property
    def beginnings(self) -> tuple[str, ...]:
        """Beginnings of the mangled names of this family."""
        if self.kind is not NameKind.FUNCTION:
            return self.names
        return tuple(f"{start}{nested_name(name)}E" for name in self.names for start in ("_ZN", "_ZNK"))


def nested_name(qualified: str) -> str:
    """A qualified C++ name as it is part of a mangled name: ``1a2bc`` of ``a::bc``; ``std`` is always ``St``."""
    parts = [f"{len(part)}{part}" for part in qualified.split("::") if part != "std"]
    return ("St" if qualified.startswith("std::") else "") + "".join(parts)
