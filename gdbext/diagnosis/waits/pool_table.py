"""Pools of background threads, as data: how their idle workers are recognized, and what it means that they are missing.
Other packages add rows by the entry point ``gdbext.pools`` (docs/library.md)."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.waits.function_tag import FunctionIndex, Functions, c_functions, torch_functions
from gdbext.torch import assumed_symbols
from gdbext.torch.torch_symbol import LOADER_WORKER, PIN_MEMORY_THREADS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from gdbext.engine.vocabulary import Internal, Sparse

NOTHING = Functions()


class Pool(NamedTuple):
    """One kind of pool. A worker in Python is known by the functions of its main loop, a native one by the function in
    which it waits. It is idle while only functions that wait are above that on its stack."""

    name: str
    """The name in reports: ``OpenBLAS``."""
    python: tuple[tuple[str, str], ...] = ()
    """(file name, function) of the workers' main loops in Python: ``("thread.py", "_worker")``."""
    waits_in: tuple[tuple[str, str], ...] = ()
    """(file name, function) of functions that only wait for work, besides those of Python's own library."""
    idles_in: tuple[str, str] | None = None
    """(file name, function) of the innermost frame of an idle worker, if its main loop does other things, too."""
    works_in: tuple[tuple[str, str], ...] = ()
    """(file name, function) of main loops that call the jobs: if one is innermost, its job is a C function."""
    native: Functions = NOTHING
    """Native functions in which a worker waits for work."""
    main: Functions = NOTHING
    """The native main function of the workers. If given, it must be on a worker's stack."""
    library: str | tuple[str, ...] = ""
    """Beginning(s) of the file name of the library with ``native`` (``libtorch``), if names alone are ambiguous."""
    within: int = 14
    """Most frames from the kernel to ``native`` of an idle worker: with more, a job may be in between."""
    named: tuple[str, ...] = ()
    """Beginnings of the names that the library gives its threads. Where its functions have no names, a thread with
    such a name that waits with few frames, all of ``library`` and of the C and C++ libraries, is an idle worker."""
    alone: bool = False
    """True if only this pool starts threads with nothing but ``library`` on their stacks: they need no name."""
    near_main: int = 0
    """Frames between ``native`` and ``main`` of an idle worker, at most; 0 for any number."""
    spins: Functions = NOTHING
    """Native functions that poll for work, without sleeping."""
    text: bytes = b""
    """A text that each library with the pool built in has among its constants: a source file's name, for Rust's panics.
    It is searched if a thread waits in a library whose functions have no names."""
    awaited_in: Functions = NOTHING
    """Native functions in which other threads wait for work of the pool: they need a thread with ``main``."""
    worker: str = " worker"
    """What follows ``name`` for one of its threads."""
    workers: str = ""
    """Its workers, if they may be missing: "this process has no …", "… only 3 …"."""
    advice_when_missing: str = ""
    """A sentence on what to do if they are missing, as after a fork."""

    @property
    def json_text(self) -> str:
        """Its name: all that JSON has of it."""
        return self.name

    @classmethod
    def of_json_text(cls, name: str) -> Pool:
        """A pool with only its name, read from JSON."""
        return cls(name)


def _working_pool(name: str, main: tuple[str, str]) -> Pool:
    """A pool whose workers' main loop in Python, (file name, function), calls the jobs itself."""
    return Pool(name, (main,), works_in=(main,))


def _cpp(*qualified: str) -> Functions:
    return Functions(qualified=qualified)


class MissingWorkers(NamedTuple):
    """Workers of a pool that a thread waits for, and that this process does not have."""

    pool: Pool
    present: int = 0
    """Number of them that it has."""
    forked: bool = False
    """Something shows that the process was forked, which threads do not survive."""
    parent: Sparse[int | None] = None
    """The process in which they stayed, if they were read from the copies of their stacks; None if unknown."""
    spins: Internal[bool] = False
    """The thread that waits for them does not sleep."""

    @property
    def sentence(self) -> str:
        """``this process has no OpenMP worker threads: they do not survive fork``."""
        if self.parent is not None:
            return (
                f"the {self.pool.workers} stayed in the parent process {self.parent}, which forked this one after it "
                "had started them"
            )
        count = f"only {self.present}" if self.present else "no"
        reason = ": they do not survive fork" if self.forked else ", for an unknown reason"
        return f"this process has {count} {self.pool.workers or f'{self.pool.name} workers'}{reason}"


OPENMP = Pool(
    "OpenMP",  # diagnosis/waits/pool_workers.py recognizes its idle workers: libgomp has no names for them
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
    workers="threads of the c10 thread pool",
)
PTHREADPOOL = Pool(
    "pthreadpool",
    native=c_functions("thread_main"),
    main=c_functions("thread_main"),
    library="libtorch",  # any library may have a thread_main
    awaited_in=c_functions("pthreadpool_parallelize"),
    workers="threads of the pthreadpool",
)
OPENBLAS = Pool("OpenBLAS", native=c_functions("blas_thread_server"))
GLOO_LOOP = Pool("gloo event loop", native=torch_functions(assumed_symbols.GLOO_LOOP))
GLOO_QUEUE = Pool("gloo work queue", native=torch_functions(assumed_symbols.GLOO_QUEUE))
STORE = Pool("c10d store", native=torch_functions(assumed_symbols.STORE_DAEMON))
NCCL = Pool("NCCL watchdog", worker="", native=torch_functions(assumed_symbols.NCCL_WATCHDOG))
DRIVER_LIBRARY = "libcuda.so"
"""The beginning of the file name of CUDA's driver, whose functions inside have no names."""
CUDA_DRIVER = Pool("CUDA driver", library=DRIVER_LIBRARY, alone=True)
RPC = Pool("RPC", native=torch_functions(assumed_symbols.RPC_POOL))
FUTURES = Pool("concurrent.futures", (("thread.py", "_worker"),))
QUEUE_FEEDER = Pool(
    "multiprocessing queue feeder",
    (("queues.py", "_feed"),),
    idles_in=("threading.py", "wait"),  # all else it does is writing into the pipe
)
_POOL_THREADS = ("_handle_workers", "_handle_tasks", "_handle_results", "worker")
MULTIPROCESSING = Pool(
    "multiprocessing.Pool",
    tuple(("pool.py", function) for function in _POOL_THREADS),
    works_in=(("pool.py", "worker"),),
)
EXECUTOR_MANAGER = Pool(
    "ProcessPoolExecutor manager",
    (("process.py", "wait_result_broken_or_wakeup"),),
    idles_in=("selectors.py", "select"),  # it may also wait for the executor's lock there
)
PROCESS_WORKER = _working_pool("ProcessPoolExecutor", ("process.py", "_process_worker"))
DATA_LOADER = _working_pool("DataLoader", LOADER_WORKER)
PIN_MEMORY = Pool("DataLoader pin memory", PIN_MEMORY_THREADS)
TQDM = Pool("tqdm monitor", (("_monitor.py", "run"),))

# --- of libraries that are often beside PyTorch in a process ---
JEMALLOC = Pool(
    "jemalloc background",
    native=c_functions("background_work_sleep_once background_thread_entry"),
    named=("jemalloc_bg_thd",),
    within=6,
)
POLARS = Pool("polars", library=("_polars_runtime", "polars.abi3"), named=("async-executor-", "polars-ooc-clea"))
RAYON = Pool(
    "rayon",
    native=_cpp("rayon_core::sleep::Sleep::sleep", "rayon_core::registry::WorkerThread::wait_until_cold"),
    main=_cpp("rayon_core::registry::main_loop", "rayon_core::registry::ThreadBuilder::run"),
    near_main=3,  # further out there is a job, which waits for another one
    awaited_in=_cpp("rayon_core::latch::LockLatch::wait_and_reset", "rayon_core::latch::LockLatch::wait"),
    named=("polars-",),
    text=b"rayon-core-",
    workers="rayon worker threads",
    advice_when_missing="Or disable the library's threads before it is first used "
    "(TOKENIZERS_PARALLELISM=false); polars has no such setting: start its processes with 'spawn'.",
)
TOKIO = Pool(
    "tokio",
    native=_cpp(
        "tokio::runtime::scheduler::multi_thread::worker::Context::park",
        "tokio::runtime::scheduler::multi_thread::park::Parker::park",
        "tokio::runtime::scheduler::multi_thread::park::Inner::park",
        "tokio::runtime::blocking::pool::Inner::run",
    ),
    named=("tokio-runtime-w", "tokio-rt-worker"),
    within=6,
    text=b"/tokio-1.",
    workers="tokio worker threads",
)
_ORT = "N11onnxruntime11concurrency15ThreadPoolTemplINS_3EnvEE"
ONNXRUNTIME = Pool(
    "onnxruntime",
    native=Functions(mangled=(f"{_ORT}10WorkerLoop", f"{_ORT}10ThreadData10SetBlocked")),
    within=6,
    library=("onnxruntime_pybind11", "libonnxruntime"),
    alone=True,
    workers="onnxruntime worker threads",
    advice_when_missing="Or create each InferenceSession in the process that uses it, after the fork.",
)
OPENCV = Pool(
    "OpenCV",
    native=_cpp("cv::WorkerThread::thread_body"),
    main=_cpp("cv::WorkerThread::thread_body"),
    within=5,
    awaited_in=_cpp("cv::ThreadPool::run"),
    library=("libopencv_core", "cv2"),
    alone=True,
    workers="OpenCV worker threads",
    advice_when_missing="Or call cv2.setNumThreads(0) before the fork.",
)
_EIGENS = (
    "IN3tsl6thread16EigenEnvironmentEE",
    "IN10tensorflow6thread16EigenEnvironmentEE",
    "INS_20StlThreadEnvironmentEE",
)
EIGEN = Pool(
    "Eigen",
    native=Functions(mangled=tuple(f"N5Eigen15ThreadPoolTempl{environment}11WaitForWork" for environment in _EIGENS)),
    workers="Eigen worker threads",
)
XLA = Pool(
    "XLA",
    library=("libjax", "xla_extension", "libpjrt"),
    named=("tf_", "py_xla_", "llvm-worker-", "pjrt_"),
    workers="XLA worker threads",
    advice_when_missing="JAX is multithreaded and must not be forked: use 'spawn'.",
)
TENSORFLOW = Pool(
    "TensorFlow",
    library=("libtensorflow", "_pywrap_tensorflow", "libpywrap_tensorflow"),
    named=("tf_",),
    workers="TensorFlow worker threads",
    advice_when_missing="TensorFlow must not be used before a fork: use 'spawn'.",
)
RAY = Pool(
    "Ray",
    library="_raylet",
    named=("worker.io", "client.poll", "server.poll", "task_events", "gcs_client_io"),
    workers="Ray threads",
)
GRPC = Pool(
    "gRPC",
    (("_server.py", "_serve"), ("_channel.py", "channel_spin")),
    library=("cygrpc", "libgrpc", "_raylet"),
    named=("grpc_global_tim", "default-executo", "resolver-execut", "event_engine", "grpcpp_sync_ser", "lifeguard"),
    workers="gRPC threads",
    advice_when_missing="Set GRPC_ENABLE_FORK_SUPPORT=1, or create channels after the fork.",
)
TENSORPIPE = Pool(
    "tensorpipe",
    native=_cpp("tensorpipe::EventLoopDeferredExecutor::loop", "tensorpipe::EpollLoop::loop"),
    within=6,
    library="libtorch",
    named=("TP_",),
    spins=_cpp("tensorpipe::BusyPollingLoop::eventLoop"),
    workers="tensorpipe threads",
)
LOKY = _working_pool("loky", ("process_executor.py", "_process_worker"))
LOKY_MANAGER = Pool("loky manager", (("process_executor.py", "wait_result_broken_or_wakeup"),))
ANYIO = _working_pool("AnyIO", ("_asyncio.py", "run"))
TRIO = Pool("trio", (("_thread_cache.py", "_work"),), works_in=(("_thread_cache.py", "_handle_job"),))
BILLIARD = Pool(
    "billiard",
    (("pool.py", "workloop"), ("pool.py", "body")),
    waits_in=(("pool.py", "receive"), ("pool.py", "_recv")),
    works_in=(("pool.py", "workloop"),),
)
FORK_SERVER = Pool("forkserver", (("forkserver.py", "main"),))
RESOURCE_TRACKER = Pool("resource tracker", (("resource_tracker.py", "main"),))
POOLS = tuple(value for value in list(globals().values()) if isinstance(value, Pool))
"""All pools above, in this order.

Sources of the functions in Python, 3.8 to 3.15: Lib/concurrent/futures/thread.py and process.py,
Lib/multiprocessing/pool.py and queues.py; tqdm/_monitor.py.

Sources of the others: jemalloc src/background_thread.c; rayon-core src/sleep/mod.rs, registry.rs, latch.rs; polars
crates/polars-stream/src/async_executor, polars-core/src/lib.rs; tokio src/runtime/scheduler/multi_thread/park.rs,
worker.rs, blocking/pool.rs; onnxruntime include/onnxruntime/core/platform/EigenNonBlockingThreadPool.h; OpenCV
modules/core/src/parallel_impl.cpp; Eigen unsupported/Eigen/CXX11/src/ThreadPool; gRPC
src/core/lib/iomgr/timer_manager.cc, executor.cc and its Python server and channel; Ray
src/ray/core_worker/core_worker_process.cc; tensorpipe tensorpipe/common/deferred_executor.h, epoll_loop.cc; the process
executor of loky and the pool of billiard; CPython's multiprocessing: forkserver, resource_tracker;
the worker threads of AnyIO (its backend for asyncio) and the thread cache of trio."""
BACKENDS = (GLOO_LOOP, GLOO_QUEUE, NCCL)
"""Pools that serve a process group."""


class PoolPart(Enum):
    WAITS = "a worker waits in it"
    MAIN = "the workers' main function"
    SPINS = "a worker looks for work in it"
    AWAITED = "others wait in it for the pool"


class PoolFunction:
    """A native function of a pool. Compared by identity: each index has its own."""

    def __init__(self, pool: Pool, part: PoolPart) -> None:
        self.pool = pool
        self.part = part

    def __repr__(self) -> str:
        return f"<{self.pool.name}: {self.part.value}>"


class PoolIndex:
    """Finds the pools of a function: ``python`` by (file name, function), ``functions_of`` by native names."""

    def __init__(self, pools: Collection[Pool] = POOLS) -> None:
        """``pools``: of two with the same main loop in Python, the first one counts."""
        self.python: Mapping[tuple[str, str], Pool] = {}
        rows = []
        for pool in pools:
            self.python = {**dict.fromkeys(pool.python, pool), **self.python}
            parts = (
                (PoolPart.WAITS, pool.native),
                (PoolPart.MAIN, pool.main),
                (PoolPart.SPINS, pool.spins),
                (PoolPart.AWAITED, pool.awaited_in),
            )
            rows += [(PoolFunction(pool, part), functions) for part, functions in parts if functions != NOTHING]
        self.functions_of = FunctionIndex(rows).tags_of
        """The parts that a native function plays, given all its names (mangled)."""
        self.without_names = tuple(pool for pool in pools if pool.named or pool.alone)
        """The pools whose workers are known by thread or library, too."""
        self.built_in = tuple(pool for pool in pools if pool.text)
        """The pools that any library may have built in, which its constants tell."""
