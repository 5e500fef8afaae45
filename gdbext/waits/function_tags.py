"""What a function's name tells about waiting: one table from names to marks.

C functions are matched by their whole exported name, C++ functions by the beginning of the mangled name (which is
unambiguous, where demangled text may only be a template argument). Everything here is
exported, or in the symbol table of every release wheel.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from gdbext.cpython.abi import native_functions
from gdbext.torch import symbols
from gdbext.torch.torch_symbol import nested_name

_C_NAMES = {
    "mutex": "pthread_mutex_lock __pthread_mutex_lock ___pthread_mutex_lock pthread_mutex_timedlock "
             "pthread_mutex_clocklock __pthread_mutex_timedlock",
    "cond": "pthread_cond_wait __pthread_cond_wait ___pthread_cond_wait pthread_cond_timedwait "
            "__pthread_cond_timedwait ___pthread_cond_timedwait pthread_cond_clockwait __pthread_cond_clockwait",
    "rdlock": "pthread_rwlock_rdlock __pthread_rwlock_rdlock ___pthread_rwlock_rdlock pthread_rwlock_timedrdlock "
              "pthread_rwlock_clockrdlock",
    "wrlock": "pthread_rwlock_wrlock __pthread_rwlock_wrlock ___pthread_rwlock_wrlock pthread_rwlock_timedwrlock "
              "pthread_rwlock_clockwrlock",
    "semaphore": "sem_wait __new_sem_wait sem_timedwait sem_clockwait __sem_clockwait ___sem_timedwait",
    "join": "pthread_join ___pthread_join __pthread_join pthread_timedjoin_np pthread_clockjoin_np "
            "__pthread_clockjoin_ex",
    "barrier": "pthread_barrier_wait ___pthread_barrier_wait __pthread_barrier_wait",
    "once": "pthread_once __pthread_once ___pthread_once __pthread_once_slow",
    "guard": "__cxa_guard_acquire",
    "loader": "dlopen dlmopen dlclose dlsym dlvsym dladdr dladdr1 dlinfo dlerror dl_iterate_phdr _dl_open "
              "_dl_catch_exception _dl_catch_error __tls_get_addr _dl_find_dso_for_object",
    "stdio": "flockfile _IO_flockfile fflush fputs puts fwrite fputc putc putchar printf vprintf fprintf vfprintf "
             "fread fgets getc fgetc getchar fclose fseek ftell _IO_fwrite _IO_puts _IO_fputs _IO_fflush _IO_getc "
             "_IO_putc __vfprintf_chk __fprintf_chk __printf_chk perror setvbuf",
    "malloc": "malloc free calloc realloc memalign aligned_alloc posix_memalign valloc pvalloc malloc_trim "
              "malloc_usable_size mallinfo mallinfo2 malloc_info __libc_malloc __libc_free __libc_calloc "
              "__libc_realloc __libc_memalign",
    "libc-lock": "fork _Fork __libc_fork exit on_exit __cxa_atexit __cxa_finalize atexit at_quick_exit setlocale "
                 "getenv setenv unsetenv putenv tzset localtime localtime_r mktime strftime syslog getaddrinfo random "
                 "srandom rand __lll_lock_wait_private pthread_create pthread_setname_np abort",
    "sleep": "sleep usleep nanosleep __nanosleep clock_nanosleep __clock_nanosleep thrd_sleep",
    "gomp-lock": "GOMP_critical_start GOMP_critical_name_start GOMP_atomic_start omp_set_lock omp_set_nest_lock",
    "device": "cudaStreamSynchronize cudaDeviceSynchronize cudaEventSynchronize cudaMemcpy cudaMemcpyAsync cudaFree "
              "cudaHostAlloc cuStreamSynchronize cuCtxSynchronize cuEventSynchronize cuMemcpyDtoH_v2 "
              "cuMemcpyHtoD_v2 hipStreamSynchronize hipDeviceSynchronize hipEventSynchronize hipMemcpy "
              "zeEventHostSynchronize zeFenceHostSynchronize zeCommandQueueSynchronize",
    "nccl": "ncclCommInitRank ncclCommInitRankConfig ncclCommInitAll ncclCommDestroy ncclCommFinalize ncclCommAbort "
            "ncclGroupEnd ncclAllReduce ncclBroadcast ncclReduce ncclAllGather ncclReduceScatter ncclSend ncclRecv "
            "ncclCommSplit",
    "mpi": "MPI_Allreduce MPI_Barrier MPI_Bcast MPI_Recv MPI_Send MPI_Wait MPI_Waitall MPI_Allgather MPI_Init",
    "assert": "__assert_fail __assert_perror_fail __assert",
    "overrun": "__stack_chk_fail __fortify_fail __chk_fail",
    "pure-virtual": "__cxa_pure_virtual __cxa_deleted_virtual",
    "terminate": "_ZSt9terminatev _ZN10__cxxabiv111__terminateEPFvvE",
    "uv-run": "uv_run",
    "blas-pool": "blas_thread_server",
    "pthreadpool": "thread_main",
    "pthreadpool-wait": "pthreadpool_parallelize",
}  # fmt: skip

_PYTHON_NAMES = {
    "gil": native_functions.TAKES_GIL,
    "drop-gil": native_functions.OFFERS_GIL,
    "eval": native_functions.EVALUATES,
    "python-lock": native_functions.WAITS_FOR_LOCK,
    "python-join": native_functions.JOINS_THREAD,
    "prompt": native_functions.READS_PROMPT,
    "python-input": native_functions.READS_INPUT,
    "python-fatal": native_functions.FATAL_ERROR,
}

_TORCH_FUNCTIONS = {
    "autograd-pop": symbols.AUTOGRAD_POP,
    "autograd-thread": symbols.AUTOGRAD_THREAD,
    "autograd-main": symbols.AUTOGRAD_MAIN,
    "autograd-execute": symbols.AUTOGRAD_EXECUTE,
    "autograd-evaluate": symbols.AUTOGRAD_EVALUATE,
    "future": symbols.FUTURE_WAIT,
    "c10-pool": symbols.POOL_LOOP,
    "c10-pool-wait": symbols.POOL_WAIT,
    "gloo-loop": symbols.GLOO_LOOP,
    "gloo-queue": symbols.GLOO_QUEUE,
    "store": symbols.STORE_WAIT,
    "store-daemon": symbols.STORE_DAEMON,
    "nccl-watchdog": symbols.NCCL_WATCHDOG,
    "no-kernel": symbols.REPORT_ERROR,
    "rpc-pool": symbols.RPC_POOL,
}
_STD_FUTURE = "std::__atomic_futex_unsigned_base::_M_futex_wait_until"
_COLLECTIVE = re.compile(symbols.COLLECTIVE_PATTERN)


def _piece(qualified: str) -> str:
    """How the mangled name of a function goes on behind ``_Z``."""
    return f"N{nested_name(qualified)}"


_MARK_OF_C_NAME = {name: mark for mark, names in _C_NAMES.items() for name in names.split()}
_MARK_OF_C_NAME.update((name, mark) for mark, names in _PYTHON_NAMES.items() for name in names)
_MARK_OF_PIECE = {_piece(name): mark for mark, family in _TORCH_FUNCTIONS.items() for name in family.names}
_MARK_OF_PIECE[_piece(_STD_FUTURE)] = "std-future"
_INTERNAL = re.compile(r"L(?=\d)")
_LONGEST = 200
"""Characters of a mangled name that are looked at."""
_PIECE = re.compile("|".join(sorted(map(re.escape, _MARK_OF_PIECE), key=len, reverse=True)))


def _plain(name: str) -> str:
    """A mangled name from its N on, without the marks of const methods (K) and internal linkage (L)."""
    start = f"N{name[4:_LONGEST]}" if name.startswith("_ZNK") else name[2:_LONGEST]
    return _INTERNAL.sub("", start)


def marks_of(names: Iterable[str]) -> frozenset[str]:
    """The marks of one function, given all its names (mangled)."""
    found: set[str] = set()
    for name in names:
        mark = _MARK_OF_C_NAME.get(name)
        if mark is not None:
            found.add(mark)
        if not name.startswith("_Z"):
            continue
        # A name at the very start of the mangled name is the function itself; deeper it is only an argument.
        match = _PIECE.match(_plain(name))
        if match is not None:
            found.add(_MARK_OF_PIECE[match.group()])
        if _COLLECTIVE.match(name):
            found.add("collective")
    return frozenset(found)
