"""The purpose of functions in waits, by name: C functions by their whole exported name, functions of C++ and Rust by
the beginning of the mangled name (demangled text may be a template argument). All are in the symbol tables of release
wheels."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from gdbext.cpython.abi import assumed_names
from gdbext.cpython.abi.assumed_names import EVAL_FUNCTIONS
from gdbext.diagnosis.waits.mpi_calls import MPI_NAMES
from gdbext.engine.formats.rust_names import rust_path
from gdbext.engine.numbers import integer
from gdbext.torch import assumed_symbols
from gdbext.torch.torch_symbol import TorchSymbol, nested_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Tag = TypeVar("Tag")
_LONGEST = 200
"""Characters of a mangled name that are compared."""
_LOCAL = re.compile(r"L(?=\d)")
"""Internal linkage, which is no part of a function's qualified name. The last letter of a name as ProcessGroupNCCL
looks like it, so both sides of a comparison are compared without it."""


class Functions(NamedTuple):
    """The functions of one purpose: names in C, qualified names in C++, a pattern and beginnings of mangled names."""

    c: tuple[str, ...] = ()
    qualified: tuple[str, ...] = ()
    pattern: str = ""
    mangled: tuple[str, ...] = ()
    """Beginnings of mangled names behind ``_Z``, for methods of templates, whose arguments are in the middle."""


def c_functions(names: str) -> Functions:
    return Functions(c=tuple(names.split()))


VARIANTS = ("_ptsz", "_ptds")
"""Endings of functions of CUDA for programs with a default stream of each thread (cuda_runtime_api.h, cuda.h)."""


class DeviceCalls(NamedTuple):
    """Functions of a device's runtime or driver for one kind of work."""

    work: str
    """The name of a DeviceWork; "" if unknown."""
    is_waiting: bool
    """They wait for the device; else only while its queue is full, or they may take long."""
    stream: int | None
    """The number of the argument that is the stream, from 0 (those in registers); None if none is."""
    event: int | None
    """The number of the argument that is the event."""
    functions: tuple[str, ...]


_DEVICE_TABLE = """\
STREAM waits 0 - cudaStreamSynchronize cuStreamSynchronize
EVENT waits - 0 cudaEventSynchronize cuEventSynchronize
DEVICE waits - - cudaDeviceSynchronize cuCtxSynchronize cudaDeviceReset
COPY waits - - cudaMemcpy cudaMemcpy2D cudaMemset cudaMemcpyPeer cudaMemcpyToSymbol cudaMemcpyFromSymbol
COPY waits - - cuMemcpy cuMemcpyDtoH_v2 cuMemcpyHtoD_v2 cuMemcpyDtoD_v2
COPY queues - - cudaMemcpy2DAsync
COPY waits 4 - cudaMemcpyAsync
COPY queues 3 - cudaMemsetAsync cuMemcpyAsync cuMemcpyDtoHAsync_v2 cuMemcpyHtoDAsync_v2 cuMemcpyDtoDAsync_v2
COPY queues 3 - cuMemsetD8Async cuMemsetD32Async
MEMORY waits - - cudaMalloc cudaFree cudaHostAlloc cudaMallocHost cudaFreeHost cudaHostRegister cudaHostUnregister
MEMORY waits - - cuMemAlloc_v2 cuMemFree_v2 cuMemHostAlloc cuMemFreeHost cuMemUnmap
MEMORY queues - - cudaMallocManaged cuMemCreate cuMemMap cuMemRelease cuMemSetAccess cudaMemGetInfo cuMemGetInfo_v2
MEMORY queues - - cudaIpcOpenMemHandle
MEMORY queues 2 - cudaMallocAsync cuMemAllocAsync
MEMORY queues 1 - cudaFreeAsync cuMemFreeAsync
LAUNCH queues - - cudaLaunchKernel cudaLaunchKernelExC cudaLaunchCooperativeKernel
LAUNCH queues - - cuLaunchKernel cuLaunchKernelEx cuLaunchCooperativeKernel
LAUNCH queues 0 - cudaLaunchHostFunc cuLaunchHostFunc cudaStreamAddCallback cuStreamAddCallback
LAUNCH queues 0 - cudaStreamDestroy cuStreamDestroy_v2
LAUNCH queues 0 1 cudaStreamWaitEvent cuStreamWaitEvent
LAUNCH queues 1 0 cudaEventRecord cuEventRecord cudaEventRecordWithFlags cuEventRecordWithFlags
GRAPH queues 1 - cudaGraphLaunch cuGraphLaunch
GRAPH queues - - cudaGraphInstantiate cudaGraphInstantiateWithFlags cuGraphInstantiateWithFlags cudaGraphUpload
GRAPH queues - - cudaGraphExecUpdate cudaGraphExecDestroy cudaGraphDestroy
GRAPH queues 0 - cudaStreamEndCapture cuStreamEndCapture cudaStreamBeginCapture cuStreamBeginCapture_v2
SETUP queues - - cuInit cudaGetDeviceCount cudaSetDevice cudaInitDevice cuDevicePrimaryCtxRetain
SETUP queues - - cuDevicePrimaryCtxRelease_v2 cuCtxCreate_v2 cuCtxDestroy_v2 cuModuleLoad cuModuleLoadData
SETUP queues - - cuModuleLoadDataEx cuModuleUnload cuLibraryLoadData cuLibraryUnload cuLinkComplete
- waits - - hipStreamSynchronize hipDeviceSynchronize hipEventSynchronize hipMemcpy zeEventHostSynchronize
- waits - - zeFenceHostSynchronize zeCommandQueueSynchronize
"""
"""Rows as DeviceCalls: work, whether they wait, stream, event, functions ("-": none); cuda_runtime_api.h and cuda.h of
CUDA 12 and 13."""


def _device_calls() -> Iterator[DeviceCalls]:
    """The rows of _DEVICE_TABLE."""
    for work, waits, stream, event, *functions in map(str.split, _DEVICE_TABLE.splitlines()):
        numbers = [None if word == "-" else integer(word) for word in (stream, event)]
        yield DeviceCalls(work.strip("-"), waits == "waits", numbers[0], numbers[1], tuple(functions))


DEVICE_CALLS = tuple(_device_calls())


def _device_functions(is_waiting: bool) -> Functions:
    names = (name for row in DEVICE_CALLS if row.is_waiting is is_waiting for name in row.functions)
    return Functions(c=tuple(name + ending for name in names for ending in ("", *VARIANTS)))


def torch_functions(*families: TorchSymbol) -> Functions:
    return Functions(qualified=tuple(name for family in families for name in family.names))


class FunctionTag(Enum):
    """The purpose of a function; the value is the functions with that purpose."""

    # --- glibc ---
    MUTEX = c_functions(
        "pthread_mutex_lock __pthread_mutex_lock ___pthread_mutex_lock pthread_mutex_timedlock pthread_mutex_clocklock "
        "__pthread_mutex_timedlock"
    )
    CONDVAR = c_functions(
        "pthread_cond_wait __pthread_cond_wait ___pthread_cond_wait pthread_cond_timedwait __pthread_cond_timedwait "
        "___pthread_cond_timedwait pthread_cond_clockwait __pthread_cond_clockwait"
    )
    READ_LOCK = c_functions(
        "pthread_rwlock_rdlock __pthread_rwlock_rdlock ___pthread_rwlock_rdlock pthread_rwlock_timedrdlock "
        "pthread_rwlock_clockrdlock"
    )
    WRITE_LOCK = c_functions(
        "pthread_rwlock_wrlock __pthread_rwlock_wrlock ___pthread_rwlock_wrlock pthread_rwlock_timedwrlock "
        "pthread_rwlock_clockwrlock"
    )
    SEMAPHORE = c_functions("sem_wait __new_sem_wait sem_timedwait sem_clockwait __sem_clockwait ___sem_timedwait")
    JOIN = c_functions(
        "pthread_join ___pthread_join __pthread_join pthread_timedjoin_np pthread_clockjoin_np __pthread_clockjoin_ex"
    )
    BARRIER = c_functions("pthread_barrier_wait ___pthread_barrier_wait __pthread_barrier_wait")
    ONCE = c_functions("pthread_once __pthread_once ___pthread_once __pthread_once_slow")
    STATIC_GUARD = c_functions("__cxa_guard_acquire")
    SLEEPS = c_functions("clock_nanosleep __clock_nanosleep nanosleep __nanosleep select __select")
    LOADER = c_functions(
        "dlopen dlmopen dlclose dlsym dlvsym dladdr dladdr1 dlinfo dlerror dl_iterate_phdr _dl_open "
        "_dl_catch_exception _dl_catch_error __tls_get_addr _dl_find_dso_for_object"
    )
    STDIO = c_functions(
        "flockfile _IO_flockfile fflush fputs puts fwrite fputc putc putchar printf vprintf fprintf vfprintf fread "
        "fgets getc fgetc getchar fclose fseek ftell _IO_fwrite _IO_puts _IO_fputs _IO_fflush _IO_getc _IO_putc "
        "__vfprintf_chk __fprintf_chk __printf_chk perror setvbuf"
    )
    MALLOC = c_functions(
        "malloc free calloc realloc memalign aligned_alloc posix_memalign valloc pvalloc malloc_trim "
        "malloc_usable_size mallinfo mallinfo2 malloc_info __libc_malloc __libc_free __libc_calloc __libc_realloc "
        "__libc_memalign"
    )
    LIBC_LOCK = c_functions(
        "fork _Fork __libc_fork exit on_exit __cxa_atexit __cxa_finalize atexit at_quick_exit setlocale getenv setenv "
        "unsetenv putenv tzset localtime localtime_r mktime strftime syslog getaddrinfo random srandom rand "
        "__lll_lock_wait_private pthread_create pthread_setname_np abort"
    )

    # --- CPython ---
    TAKES_GIL = Functions(assumed_names.TAKES_GIL)
    OFFERS_GIL = Functions(assumed_names.OFFERS_GIL)
    EVAL_FUNCTIONS = Functions(EVAL_FUNCTIONS)
    PYTHON_LOCK = Functions(assumed_names.WAITS_FOR_LOCK)
    RUNS_SIGNAL_HANDLERS = Functions(assumed_names.RUNS_SIGNAL_HANDLERS)
    RUNS_FINALIZERS = Functions(assumed_names.RUNS_FINALIZERS)
    RUNS_WEAKREF_CALLBACKS = Functions(assumed_names.RUNS_WEAKREF_CALLBACKS)
    PROMPT = Functions(assumed_names.READS_PROMPT)

    # --- libraries below torch ---
    OPENMP_LOCK = c_functions(
        "GOMP_critical_start GOMP_critical_name_start GOMP_atomic_start omp_set_lock omp_set_nest_lock"
    )
    DEVICE = _device_functions(is_waiting=True)
    DEVICE_QUEUE = _device_functions(is_waiting=False)
    NCCL = c_functions(
        "ncclCommInitRank ncclCommInitRankConfig ncclCommInitAll ncclCommDestroy ncclCommFinalize ncclCommAbort "
        "ncclGroupEnd ncclAllReduce ncclBroadcast ncclBcast ncclReduce ncclAllGather ncclReduceScatter ncclSend "
        "ncclRecv ncclCommSplit ncclCommShrink ncclCommInitRankScalable ncclCommRegister ncclCommDeregister "
        "ncclCommWindowRegister ncclAlltoAll ncclGather ncclScatter"
    )
    MPI = Functions(c=MPI_NAMES)
    STD_FUTURE = Functions(qualified=("std::__atomic_futex_unsigned_base::_M_futex_wait_until",))

    # --- torch ---
    AUTOGRAD_MAIN = torch_functions(assumed_symbols.AUTOGRAD_MAIN)
    AUTOGRAD_EXECUTE = torch_functions(assumed_symbols.AUTOGRAD_EXECUTE)
    AUTOGRAD_EVALUATE = torch_functions(assumed_symbols.AUTOGRAD_EVALUATE)
    FUTURE = torch_functions(assumed_symbols.FUTURE_WAIT)
    STORE = torch_functions(assumed_symbols.STORE_WAIT)
    COLLECTIVE = Functions(pattern=assumed_symbols.COLLECTIVE_PATTERN)
    NO_KERNEL = torch_functions(assumed_symbols.REPORT_ERROR)

    # --- ends of a program ---
    ASSERT = c_functions("__assert_fail __assert_perror_fail __assert")
    OVERRUN = c_functions("__stack_chk_fail __fortify_fail __chk_fail")
    PURE_VIRTUAL = c_functions("__cxa_pure_virtual __cxa_deleted_virtual")
    TERMINATE = c_functions("_ZSt9terminatev _ZN10__cxxabiv111__terminateEPFvvE")
    PYTHON_FATAL = Functions(assumed_names.FATAL_ERROR)


class FunctionIndex(Generic[Tag]):
    """Finds the tags of a function by its names."""

    def __init__(self, tagged: Iterable[tuple[Tag, Functions]]) -> None:
        """``tagged``: (tag, the functions that have it)."""
        rows = list(tagged)
        self._by_name: dict[str, list[Tag]] = {}
        self._by_path: dict[tuple[str, ...], list[Tag]] = {}
        self._by_beginning: dict[str, list[Tag]] = {}
        for tag, functions in rows:
            for name in functions.c:
                self._by_name.setdefault(name, []).append(tag)
            for name in functions.qualified:
                self._by_path.setdefault(tuple(name.split("::")), []).append(tag)
                self._by_beginning.setdefault(_LOCAL.sub("", f"N{nested_name(name)}"), []).append(tag)
            for name in functions.mangled:
                self._by_beginning.setdefault(_LOCAL.sub("", name), []).append(tag)
        self._beginnings = tuple(sorted(self._by_beginning, key=len, reverse=True))
        self._by_pattern = [(re.compile(functions.pattern), tag) for tag, functions in rows if functions.pattern]
        self._pattern_beginnings = tuple(f"_ZN{nested_name(namespace)}" for namespace in ("gloo", "c10d"))

    def tags_of(self, names: Iterable[str]) -> frozenset[Tag]:
        """The tags of one function, given all its names (mangled)."""
        tags: set[Tag] = set()
        for name in names:
            tags.update(self._by_name.get(name, ()))
            if not name.startswith("_Z"):
                path = rust_path(name)
                tags.update(tag for end in range(2, len(path) + 1) for tag in self._by_path.get(path[:end], ()))
                continue
            # A name at the very start of the mangled name is the function itself; deeper it is only an argument. It is
            # compared from its N on, without the letters of const methods (K) and internal linkage (L).
            plain = _LOCAL.sub("", f"N{name[4:_LONGEST]}" if name.startswith("_ZNK") else name[2:_LONGEST])
            if plain.startswith(self._beginnings):
                longest = next(beginning for beginning in self._beginnings if plain.startswith(beginning))
                tags.update(self._by_beginning[longest])
            if self._by_pattern and name.startswith(self._pattern_beginnings):
                tags.update(tag for pattern, tag in self._by_pattern if pattern.match(name))
        return frozenset(tags)


tags_of = FunctionIndex((tag, tag.value) for tag in FunctionTag).tags_of
"""The tags of one function, given all its names (mangled)."""
