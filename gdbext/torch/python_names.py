"""What is assumed of torch's Python modules by name, like ``symbols.py`` for its libraries.

Seen in the wheels of 2.0.1, 2.4.1, 2.6.0, 2.10.0, 2.13.0 and 2.15.0.
"""

from __future__ import annotations

LOADER_FILE = "torch/utils/data/dataloader.py"
"""Its frames on a stack mean that a DataLoader's batch is waited for; without it, that wait has no worker processes."""
LOADER_WORKERS = "_workers"
"""The attribute of _MultiProcessingDataLoaderIter with its worker processes (multiprocessing.Process)."""

LOADER_WORKER = ("worker.py", "_worker_loop")
"""(file, function) of the main function of a DataLoader's worker processes (torch/utils/data/_utils/worker.py)."""

PIN_MEMORY_THREADS = (("pin_memory.py", "_pin_memory_loop"), ("pin_memory.py", "do_one_step"))
"""(file, function) of the main function of the threads of torch/utils/data/_utils/pin_memory.py; without it an idle one
is called a waiting thread."""

DISTRIBUTED = "torch.distributed.distributed_c10d"
"""The module that keeps the process groups; without it, groups are known from the flight recorder alone."""
GROUP_MAP, GROUP_NAMES, GROUP_RANKS = "_pg_map", "_pg_names", "_pg_group_ranks"
"""Its dicts, all by process group: (backend, store), the name, rank in the job → rank in the group."""
TORCH_FILES = "/torch/"
"""In the path of every file of torch's Python code."""
DISTRIBUTED_FILE = "torch/distributed/distributed_c10d.py"
POINT_TO_POINT = {"recv": ("src", "group_src"), "send": ("dst", "group_dst")}
"""Its functions that wait for one other rank: the arguments that name it in the job and in the group (2.6 and later);
without them, such a wait has no peer."""
UNNUMBERED = ("monitored_barrier",)
"""Its functions that wait for all ranks of a group and that no flight recorder numbers."""

ANOMALY_TRACEBACK = "traceback_"
"""The key of anomaly mode's list of lines (torch/csrc/autograd/python_anomaly_mode.h); without it, nodes have no
forward line. Seen in 2.13.0."""
FUNCTION_FORWARD_CLASS, FUNCTION_FORWARD = "_forward_cls", "forward"
"""Of the class of a torch.autograd.Function's nodes, the Function itself, and of that the method
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
