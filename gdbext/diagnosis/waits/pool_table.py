"""Pools of background threads, as data: how their idle workers are recognised, and what it means that they are missing.

Pool: one row. ``POOLS`` has those of Python, PyTorch and the libraries below it; other packages add theirs by the entry
point ``gdbext.pools`` (docs/library.md), and nothing tells the two apart.

PoolIndex: which part a function plays in which pool.

MissingWorkers: workers that a thread waits for and that the process does not have.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

from gdbext.diagnosis.waits.function_tag import FunctionIndex, Functions, c_functions, torch_functions
from gdbext.engine.record import Record
from gdbext.torch import assumed_symbols
from gdbext.torch.torch_symbol import LOADER_WORKER, PIN_MEMORY_THREADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NOTHING = Functions()


class Pool(Record):
    """One kind of pool: threads that wait for work, and do it.

    A worker that is written in Python is known by the functions of its main loop, one that is native by the function in
    which it waits. It is idle while nothing but waiting stands above that on its stack.
    """

    name: str
    """The name in reports: ``OpenBLAS``."""
    python: tuple[tuple[str, str], ...] = ()
    """(file name, function) of the workers' main loops in Python: ``("thread.py", "_worker")``."""
    waits_in: tuple[tuple[str, str], ...] = ()
    """(file name, function) of further functions, called by the main loop, that only wait for work. Those of threading,
    queue, selectors and multiprocessing are known."""
    idles_in: tuple[str, str] | None = None
    """(file name, function) of the innermost frame of an idle worker, where its main loop does other things, too."""
    works_in: tuple[tuple[str, str], ...] = ()
    """(file name, function) of main loops that call the jobs themselves: where one is innermost, its job is a function
    of C."""
    native: Functions = NOTHING
    """Native functions in which a worker waits for work."""
    main: Functions = NOTHING
    """The native main function of the workers. Where it is given, a worker has it on its stack."""
    library: str = ""
    """The beginning of the file name of the library with ``native`` (``libtorch``), where the names alone do not
    tell."""
    awaited_in: Functions = NOTHING
    """Native functions in which other threads wait for work of the pool: they need a thread with ``main``."""
    workers: str = ""
    """Its workers, where they may be missing: "this process has no …", "… only 3 …"."""
    advice_when_missing: str = ""
    """A sentence on what to do where they are missing, which they are after fork."""


class MissingWorkers(Record):
    """Workers of a pool that a thread waits for, and that this process does not have."""

    pool: Pool
    present: int = 0
    """Number of them that it has."""
    forked: bool = False
    """Something shows that the process was forked, which threads do not survive."""

    @property
    def sentence(self) -> str:
        """``this process has no OpenMP worker threads: they do not survive fork``."""
        count = f"only {self.present}" if self.present else "no"
        reason = "they do not survive fork" if self.forked else "why, is not known"
        return f"this process has {count} {self.pool.workers or f'workers of the {self.pool.name}'}: {reason}"


OPENMP = Pool(
    "OpenMP",  # its idle workers are told by diagnosis/waits/pool_workers.py: libgomp has no names for them
    workers="OpenMP worker threads",
    advice_when_missing="Or call torch.set_num_threads(1) before the fork (or set OMP_NUM_THREADS=1), so that no pool "
    "is needed.",
)
AUTOGRAD = Pool(
    "autograd",
    native=torch_functions(assumed_symbols.AUTOGRAD_POP, assumed_symbols.AUTOGRAD_THREAD),
    main=torch_functions(assumed_symbols.AUTOGRAD_THREAD),  # a thread that calls backward pops from a queue, too
    workers="autograd engine threads",
)
C10 = Pool(
    "c10 thread pool",
    native=torch_functions(assumed_symbols.POOL_LOOP),
    main=torch_functions(assumed_symbols.POOL_LOOP),
    awaited_in=torch_functions(assumed_symbols.POOL_WAIT),
    workers="thread of the c10 thread pool",
)
PTHREADPOOL = Pool(
    "pthreadpool",
    native=c_functions("thread_main"),
    main=c_functions("thread_main"),
    library="libtorch",  # any library may have a thread_main
    awaited_in=c_functions("pthreadpool_parallelize"),
    workers="thread of the pthreadpool",
)
OPENBLAS = Pool("OpenBLAS", native=c_functions("blas_thread_server"))
GLOO_LOOP = Pool("gloo event loop", native=torch_functions(assumed_symbols.GLOO_LOOP))
GLOO_QUEUE = Pool("gloo work queue", native=torch_functions(assumed_symbols.GLOO_QUEUE))
STORE = Pool("c10d store", native=torch_functions(assumed_symbols.STORE_DAEMON))
NCCL = Pool("NCCL watchdog", native=torch_functions(assumed_symbols.NCCL_WATCHDOG))
RPC = Pool("RPC", native=torch_functions(assumed_symbols.RPC_POOL))
FUTURES = Pool("concurrent.futures", (("thread.py", "_worker"),))
QUEUE_FEEDER = Pool(
    "multiprocessing queue feeder",
    (("queues.py", "_feed"),),
    idles_in=("threading.py", "wait"),  # all else it does is writing into the pipe
)
_POOL_THREADS = ("_handle_workers", "_handle_tasks", "_handle_results", "worker")
MULTIPROCESSING = Pool(
    "multiprocessing.Pool", tuple(("pool.py", each) for each in _POOL_THREADS), works_in=(("pool.py", "worker"),)
)
EXECUTOR_MANAGER = Pool("ProcessPoolExecutor manager", (("process.py", "wait_result_broken_or_wakeup"),))
_PROCESS_WORKER = (("process.py", "_process_worker"),)
PROCESS_WORKER = Pool("ProcessPoolExecutor", _PROCESS_WORKER, works_in=_PROCESS_WORKER)
DATA_LOADER = Pool("DataLoader", (LOADER_WORKER,), works_in=(LOADER_WORKER,))
PIN_MEMORY = Pool("DataLoader pin memory", PIN_MEMORY_THREADS)
TQDM = Pool("tqdm monitor", (("_monitor.py", "run"),))

POOLS = (
    OPENMP, AUTOGRAD, C10, PTHREADPOOL, OPENBLAS, GLOO_LOOP, GLOO_QUEUE, STORE, NCCL, RPC, FUTURES, QUEUE_FEEDER,
    MULTIPROCESSING, EXECUTOR_MANAGER, PROCESS_WORKER, DATA_LOADER, PIN_MEMORY, TQDM,
)  # fmt: skip
"""Sources of the functions in Python, 3.8 to 3.15: Lib/concurrent/futures/thread.py and process.py,
Lib/multiprocessing/pool.py and queues.py; tqdm/_monitor.py."""
BACKENDS = (GLOO_LOOP, GLOO_QUEUE, NCCL)
"""Pools that serve a process group."""


class PoolPart(Enum):
    """The part that a function plays in a pool."""

    WAITS = "a worker waits in it"
    MAIN = "the workers' main function"
    AWAITED = "others wait in it for the pool"


class PoolFunction:
    """A native function of a pool. Compared by identity: each index has its own."""

    def __init__(self, pool: Pool, part: PoolPart) -> None:
        self.pool = pool
        self.part = part

    def __repr__(self) -> str:
        return f"<{self.pool.name}: {self.part.value}>"


class PoolIndex:
    """The rows of all pools, to be asked by function."""

    def __init__(self, pools: Iterable[Pool] = POOLS) -> None:
        self.python: Mapping[tuple[str, str], Pool] = {}
        rows = []
        for pool in pools:
            self.python = {**dict.fromkeys(pool.python, pool), **self.python}
            parts = ((PoolPart.WAITS, pool.native), (PoolPart.MAIN, pool.main), (PoolPart.AWAITED, pool.awaited_in))
            rows += [(PoolFunction(pool, part), functions) for part, functions in parts if functions != NOTHING]
        self._functions = FunctionIndex(rows)

    def functions_of(self, names: Iterable[str]) -> frozenset[PoolFunction]:
        """The parts that a native function plays, given all its names (mangled)."""
        return self._functions.tags_of(names)
