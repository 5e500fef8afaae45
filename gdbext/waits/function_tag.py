"""FunctionTag: what the name of a function tells about a wait, one row for each purpose.

C functions are matched by their whole exported name, C++ functions by the beginning of the mangled name (which is
unambiguous, where demangled text may only be a template argument). Everything here is exported, or in the symbol table
of every release wheel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from gdbext.cpython.abi import native_functions
from gdbext.model.record import Record
from gdbext.torch import symbols
from gdbext.torch.torch_symbol import TorchSymbol, nested_name

_LONGEST = 200
"""Characters of a mangled name that are compared."""
_LOCAL = re.compile(r"L(?=\d)")
"""Internal linkage, which is no part of a function's qualified name."""


class Functions(Record):
    """The functions of one purpose: names in C, qualified names in C++, and a pattern of mangled names."""

    c: tuple[str, ...] = ()
    qualified: tuple[str, ...] = ()
    pattern: str = ""


def _c(names: str) -> Functions:
    return Functions(c=tuple(names.split()))


def _python(names: tuple[str, ...]) -> Functions:
    return Functions(c=names)


def _torch(family: TorchSymbol) -> Functions:
    return Functions(qualified=family.names)


class FunctionTag(Enum):
    """What a function is for; the value is the functions that are."""

    # --- glibc ---
    MUTEX = _c(
        "pthread_mutex_lock __pthread_mutex_lock ___pthread_mutex_lock pthread_mutex_timedlock pthread_mutex_clocklock "
        "__pthread_mutex_timedlock"
    )
    CONDVAR = _c(
        "pthread_cond_wait __pthread_cond_wait ___pthread_cond_wait pthread_cond_timedwait __pthread_cond_timedwait "
        "___pthread_cond_timedwait pthread_cond_clockwait __pthread_cond_clockwait"
    )
    READ_LOCK = _c(
        "pthread_rwlock_rdlock __pthread_rwlock_rdlock ___pthread_rwlock_rdlock pthread_rwlock_timedrdlock "
        "pthread_rwlock_clockrdlock"
    )
    WRITE_LOCK = _c(
        "pthread_rwlock_wrlock __pthread_rwlock_wrlock ___pthread_rwlock_wrlock pthread_rwlock_timedwrlock "
        "pthread_rwlock_clockwrlock"
    )
    SEMAPHORE = _c("sem_wait __new_sem_wait sem_timedwait sem_clockwait __sem_clockwait ___sem_timedwait")
    JOIN = _c(
        "pthread_join ___pthread_join __pthread_join pthread_timedjoin_np pthread_clockjoin_np __pthread_clockjoin_ex"
    )
    BARRIER = _c("pthread_barrier_wait ___pthread_barrier_wait __pthread_barrier_wait")
    ONCE = _c("pthread_once __pthread_once ___pthread_once __pthread_once_slow")
    STATIC_GUARD = _c("__cxa_guard_acquire")
    LOADER = _c(
        "dlopen dlmopen dlclose dlsym dlvsym dladdr dladdr1 dlinfo dlerror dl_iterate_phdr _dl_open "
        "_dl_catch_exception _dl_catch_error __tls_get_addr _dl_find_dso_for_object"
    )
    STDIO = _c(
        "flockfile _IO_flockfile fflush fputs puts fwrite fputc putc putchar printf vprintf fprintf vfprintf fread "
        "fgets getc fgetc getchar fclose fseek ftell _IO_fwrite _IO_puts _IO_fputs _IO_fflush _IO_getc _IO_putc "
        "__vfprintf_chk __fprintf_chk __printf_chk perror setvbuf"
    )
    MALLOC = _c(
        "malloc free calloc realloc memalign aligned_alloc posix_memalign valloc pvalloc malloc_trim "
        "malloc_usable_size mallinfo mallinfo2 malloc_info __libc_malloc __libc_free __libc_calloc __libc_realloc "
        "__libc_memalign"
    )
    LIBC_LOCK = _c(
        "fork _Fork __libc_fork exit on_exit __cxa_atexit __cxa_finalize atexit at_quick_exit setlocale getenv setenv "
        "unsetenv putenv tzset localtime localtime_r mktime strftime syslog getaddrinfo random srandom rand "
        "__lll_lock_wait_private pthread_create pthread_setname_np abort"
    )

    # --- CPython ---
    TAKES_GIL = _python(native_functions.TAKES_GIL)
    OFFERS_GIL = _python(native_functions.OFFERS_GIL)
    EVALUATES = _python(native_functions.EVALUATES)
    PYTHON_LOCK = _python(native_functions.WAITS_FOR_LOCK)
    RUNS_SIGNAL_HANDLERS = _python(native_functions.RUNS_SIGNAL_HANDLERS)
    RUNS_FINALIZERS = _python(native_functions.RUNS_FINALIZERS)
    RUNS_WEAKREF_CALLBACKS = _python(native_functions.RUNS_WEAKREF_CALLBACKS)
    PROMPT = _python(native_functions.READS_PROMPT)

    # --- libraries below torch ---
    OPENMP_LOCK = _c("GOMP_critical_start GOMP_critical_name_start GOMP_atomic_start omp_set_lock omp_set_nest_lock")
    DEVICE = _c(
        "cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cudaMemcpy cudaMemcpyAsync cudaFree "
        "cudaHostAlloc cuStreamSynchronize cuCtxSynchronize cuEventSynchronize cuMemcpyDtoH_v2 cuMemcpyHtoD_v2 "
        "hipStreamSynchronize hipDeviceSynchronize hipEventSynchronize hipMemcpy zeEventHostSynchronize "
        "zeFenceHostSynchronize zeCommandQueueSynchronize"
    )
    NCCL = _c(
        "ncclCommInitRank ncclCommInitRankConfig ncclCommInitAll ncclCommDestroy ncclCommFinalize ncclCommAbort "
        "ncclGroupEnd ncclAllReduce ncclBroadcast ncclReduce ncclAllGather ncclReduceScatter ncclSend ncclRecv "
        "ncclCommSplit"
    )
    MPI = _c("MPI_Allreduce MPI_Barrier MPI_Bcast MPI_Recv MPI_Send MPI_Wait MPI_Waitall MPI_Allgather MPI_Init")
    OPENBLAS_POOL = _c("blas_thread_server")
    PTHREADPOOL = _c("thread_main")
    PTHREADPOOL_WAIT = _c("pthreadpool_parallelize")
    STD_FUTURE = Functions(qualified=("std::__atomic_futex_unsigned_base::_M_futex_wait_until",))

    # --- torch ---
    AUTOGRAD_POP = _torch(symbols.AUTOGRAD_POP)
    AUTOGRAD_THREAD = _torch(symbols.AUTOGRAD_THREAD)
    AUTOGRAD_MAIN = _torch(symbols.AUTOGRAD_MAIN)
    AUTOGRAD_EXECUTE = _torch(symbols.AUTOGRAD_EXECUTE)
    AUTOGRAD_EVALUATE = _torch(symbols.AUTOGRAD_EVALUATE)
    FUTURE = _torch(symbols.FUTURE_WAIT)
    C10_POOL = _torch(symbols.POOL_LOOP)
    C10_POOL_WAIT = _torch(symbols.POOL_WAIT)
    GLOO_LOOP = _torch(symbols.GLOO_LOOP)
    GLOO_QUEUE = _torch(symbols.GLOO_QUEUE)
    STORE = _torch(symbols.STORE_WAIT)
    STORE_DAEMON = _torch(symbols.STORE_DAEMON)
    NCCL_WATCHDOG = _torch(symbols.NCCL_WATCHDOG)
    RPC_POOL = _torch(symbols.RPC_POOL)
    COLLECTIVE = Functions(pattern=symbols.COLLECTIVE_PATTERN)
    NO_KERNEL = _torch(symbols.REPORT_ERROR)

    # --- ends of a program ---
    ASSERT = _c("__assert_fail __assert_perror_fail __assert")
    OVERRUN = _c("__stack_chk_fail __fortify_fail __chk_fail")
    PURE_VIRTUAL = _c("__cxa_pure_virtual __cxa_deleted_virtual")
    TERMINATE = _c("_ZSt9terminatev _ZN10__cxxabiv111__terminateEPFvvE")
    PYTHON_FATAL = _python(native_functions.FATAL_ERROR)


def _begins(qualified: str) -> str:
    """How the mangled name of a function goes on behind ``_Z``."""
    return f"N{nested_name(qualified)}"


_BY_NAME = {name: tag for tag in FunctionTag for name in tag.value.c}
_BY_BEGINNING = {_begins(name): tag for tag in FunctionTag for name in tag.value.qualified}
_BY_PATTERN = [(re.compile(tag.value.pattern), tag) for tag in FunctionTag if tag.value.pattern]
_BEGINNING = re.compile("|".join(sorted(map(re.escape, _BY_BEGINNING), key=len, reverse=True)))


def tags_of(names: Iterable[str]) -> frozenset[FunctionTag]:
    """The tags of one function, given all its names (mangled)."""
    found: set[FunctionTag] = set()
    for name in names:
        tag = _BY_NAME.get(name)
        if tag is not None:
            found.add(tag)
        if name.startswith("_Z"):
            found.update(_of_mangled(name))
    return frozenset(found)


def _of_mangled(name: str) -> Iterable[FunctionTag]:
    # A name at the very start of the mangled name is the function itself; deeper it is only an argument.
    match = _BEGINNING.match(_plain(name))
    if match is not None:
        yield _BY_BEGINNING[match.group()]
    yield from (tag for pattern, tag in _BY_PATTERN if pattern.match(name))


def _plain(name: str) -> str:
    """A mangled name from its N on, without the letters of const methods (K) and internal linkage (L)."""
    start = f"N{name[4:_LONGEST]}" if name.startswith("_ZNK") else name[2:_LONGEST]
    return _LOCAL.sub("", start)
