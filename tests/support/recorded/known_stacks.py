"""The stacks of known bugs as the pages of their entries print them: made reports, for programs that hang by chance, on
hardware, or with versions that are not here."""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from gdbext.known.signatures import ThreadFacts

SITE = "/env/lib/python3.13/site-packages"
STDLIB = "/usr/lib/python3.13"
NOTHING: Mapping[str, str] = MappingProxyType({})


class Stuck(NamedTuple):
    """A process as its page shows it. ``bug``: the id of the entry that fits, or a name."""

    bug: str
    threads: Sequence[ThreadFacts]
    versions: Mapping[str, str] = NOTHING
    environment: Mapping[str, str] = NOTHING
    relations: Sequence[str] = ()
    architecture: str = "x86_64"


def thread(label: str, waits_for: str = "", python: str = "", native: str = "", **facts: Any) -> ThreadFacts:
    """A thread; ``python`` has lines "file function", ``native`` lines "library function", the innermost first."""
    frames = [line.split(None, 1) for line in native.splitlines() if line.strip()]
    stack = [((lambda name=name: (name,)), library) for library, name in frames]
    return ThreadFacts(label, lines(python), waits_for, facts.pop("missing_workers", ""), lambda: stack, **facts)


def lines(python: str) -> list[tuple[str, str]]:
    """The frames in lines of "file function"; ~ stands for Python's library, @ for the installed packages."""
    text = python.replace("~", STDLIB).replace("@", SITE)
    return [(file, function) for file, function in (line.split() for line in text.splitlines() if line.strip())]


def with_gil(native: str) -> list[ThreadFacts]:
    """A thread that is in a call with the GIL in hand, and another one that waits for the GIL."""
    return [thread("MainThread", native=native, holds=["gil"], state="running"), thread("other", "gil")]


# joblib/threadpoolctl#239, description: the thread with the GIL, and that which called dl_iterate_phdr.
SCANNING = f"""
{SITE}/threadpoolctl.py ThreadpoolController._find_libraries_with_dl_iterate_phdr
{SITE}/threadpoolctl.py ThreadpoolController.__init__
"""
HOLDING = """
libc.so.6 dl_iterate_phdr
libgcc_s.so.1 _Unwind_Find_FDE
_multiarray_umath.cpython-313-x86_64-linux-gnu.so array_add
"""
TEAM = """
libc.so.6 syscall
libgomp-98.so.1 ??
libtorch_cpu.so at::parallel_for
"""

MANAGER = "~/concurrent/futures/process.py _ExecutorManagerThread."
JOINS = f"""
~/multiprocessing/queues.py Queue.join_thread
{MANAGER}_join_executor_internals
{MANAGER}join_executor_internals
{MANAGER}run
"""
FEEDS = """
~/multiprocessing/connection.py Connection._send
~/multiprocessing/connection.py Connection.send_bytes
~/multiprocessing/queues.py Queue._feed
"""
COMPILED = (
    "libtorch_python.so torch::dynamo::autograd::compiled_autograd(std::shared_ptr<torch::autograd::Node> const&)"
)
FREED = """
libtorch_cpu.so torch::autograd::Node::~Node()
libtorch_cpu.so torch::autograd::generated::SelectBackward0::~SelectBackward0()
libtorch_cpu.so torch::autograd::deleteNode(torch::autograd::Node*)
libtorch_cpu.so std::_Sp_counted_base<(__gnu_cxx::_Lock_policy)2>::_M_release_last_use_cold()
"""
C10D = "@/torch/distributed/distributed_c10d.py"
SIMPLIFIES = """
@/sympy/core/basic.py Basic.replace.<locals>.walk
@/sympy/core/basic.py Basic.replace
@/sympy/simplify/simplify.py simplify
"""
WRITES = "~/threading.py Condition.wait\n~/queue.py Queue.put\n"
WRITER = "@/tensorboard/summary/writer/event_file_writer.py"

STACKS = [
    Stuck(
        "joblib/threadpoolctl#239", [thread("holds", "loader-lock", native=HOLDING), thread("scans", "gil", SCANNING)]
    ),
    Stuck("gcc#52303", [thread("MainThread", "worker-pool", native=TEAM, missing_workers="OpenMP")]),
    Stuck(
        "cpython#115634",
        [
            thread(
                "MainThread", "condvar", "~/threading.py Condition.wait\n~/concurrent/futures/_base.py Future.result"
            ),
            thread(
                "Thread-1",
                "worker-pool",
                f"~/multiprocessing/connection.py wait\n{MANAGER}wait_result_broken_or_wakeup",
            ),
        ],
        {"python": "3.13.14"},
        relations=["no-workers"],
    ),
    Stuck(
        "cpython#140746",
        [
            thread(
                "serves",
                "condvar",
                "~/threading.py Condition.wait\n~/threading.py Event.wait\n~/threading.py Thread.start",
            ),
        ],
        {"python": "3.12.3"},
    ),
    Stuck(
        "cpython#146313",
        [
            thread(
                "MainThread",
                "child-process",
                """
            ~/multiprocessing/resource_tracker.py ResourceTracker._stop_locked
            ~/multiprocessing/resource_tracker.py ResourceTracker._stop
            ~/multiprocessing/resource_tracker.py ResourceTracker.__del__
        """,
            ),
        ],
        {"python": "3.13.9"},
    ),
    Stuck(
        "cpython#94777",
        [
            thread("manager", "join", f"{JOINS}{MANAGER}terminate_broken"),
            thread("feeder", "io", FEEDS),
        ],
        {"python": "3.10.5"},
    ),
    Stuck(
        "cpython#105829",
        [
            thread(
                "MainThread",
                "io",
                """
            ~/multiprocessing/connection.py Connection._send
            ~/concurrent/futures/process.py _ThreadWakeup.wakeup
            ~/concurrent/futures/process.py ProcessPoolExecutor.submit
        """,
            ),
            thread("manager", "python-lock", f"{MANAGER}wait_result_broken_or_wakeup"),
        ],
        {"python": "3.12.0"},
    ),
    Stuck(
        "cpython#125451",
        [
            thread("manager", "join", JOINS),
            thread(
                "feeder",
                "python-lock",
                """
            ~/concurrent/futures/process.py _SafeQueue._on_queue_feeder_error
            ~/multiprocessing/queues.py Queue._feed
        """,
            ),
        ],
        {"python": "3.13.0"},
    ),
    Stuck(
        "cpython#119710",
        [
            thread(
                "MainThread",
                "io",
                "~/selectors.py EpollSelector.select",
                tasks=[
                    lines(
                        "~/asyncio/base_subprocess.py BaseSubprocessTransport._wait\n~/asyncio/subprocess.py Process.wait"
                    ),
                ],
            ),
        ],
        {"python": "3.14.6"},
        relations=["no-children"],
    ),
    Stuck(
        "cpython#123720",
        [
            thread(
                "MainThread",
                "io",
                "~/selectors.py EpollSelector.select",
                tasks=[
                    lines("~/asyncio/base_events.py Server.wait_closed\n~/asyncio/base_events.py Server.serve_forever"),
                ],
            ),
        ],
        {"python": "3.12.1"},
    ),
    Stuck(
        "pytorch#182948",
        [
            thread(
                "MainThread",
                "python-lock",
                "@/torch/cuda/__init__.py _lazy_call\n@/torch/cuda/random.py set_rng_state\n"
                "@/torch/cuda/__init__.py _lazy_call",
            ),
        ],
        {"torch": "2.10.0+cu128"},
    ),
    Stuck(
        "pytorch#135298",
        [
            thread(
                "MainThread",
                "mutex",
                native=f"libc.so.6 pthread_mutex_lock\n{COMPILED}\n"
                f"libtorch_cpu.so torch::autograd::Engine::execute(int)\n{COMPILED}",
            ),
        ],
        {"torch": "2.4.0"},
    ),
    Stuck(
        "pytorch#97833",
        [
            thread(
                "frees",
                "gil",
                native="""
            libtorch_python.so pybind11::gil_scoped_acquire::gil_scoped_acquire()
            libtorch_python.so std::_Sp_counted_ptr_inplace<StackContext, std::allocator<StackContext>, 2>::_M_dispose()
        """,
            ),
            thread(
                "allocates",
                "mutex",
                native="""
            libc.so.6 pthread_mutex_lock
            libc10_cuda.so c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(int, unsigned long)
        """,
            ),
        ],
        {"torch": "2.0.0"},
    ),
    Stuck(
        "pytorch#58382",
        [
            thread("completes", "gil", native="libtorch_cpu.so c10::ivalue::Future::markCompleted(c10::IValue)"),
            thread("asks", "mutex", native="libtorch_cpu.so c10::ivalue::Future::hasValue() const", holds=["gil"]),
        ],
        {"torch": "1.8.1"},
    ),
    Stuck(
        "pytorch#130610",
        [
            thread(
                "pt_data_worker",
                "libc-lock",
                roles=["main"],
                native="""
            libc.so.6 __cxa_atexit
            libtorch_cpu.so caffe2::pthreadpool()
        """,
            ),
        ],
        relations=["forked", "one-thread"],
    ),
    Stuck(
        "pytorch#75147",
        [
            thread(
                "MainThread",
                "mutex",
                native="""
            libc.so.6 pthread_mutex_lock
            libiomp5.so __kmp_lock_suspend_mx
            libiomp5.so __kmp_free_thread
            libiomp5.so __kmp_set_num_threads
            libtorch_cpu.so at::set_num_threads(int)
        """,
            ),
        ],
    ),
    Stuck(
        "pytorch#189290",
        [
            thread(
                "reader",
                "io",
                "@/torch/_inductor/compile_worker/subproc_pool.py _recv_msg\n"
                "@/torch/_inductor/compile_worker/subproc_pool.py SubprocPool._read_thread",
            ),
            thread(
                "MainThread",
                "condvar",
                "~/concurrent/futures/_base.py Future.result\n@/torch/_inductor/async_compile.py AsyncCompile.wait",
            ),
        ],
        {"torch": "2.12.0"},
        relations=["no-child:compile_worker"],
    ),
    Stuck(
        "pytorch#179291",
        [
            thread(
                "pt_gloo",
                roles=["crashed"],
                native="""
            libc.so.6 abort
            libstdc++.so.6 std::terminate()
            libc.so.6 pthread_exit
            libpython3.12.so.1.0 PyThread_exit_thread
            libtorch_cpu.so c10d::ProcessGroupGloo::runLoop(int)
        """,
            ),
        ],
    ),
    Stuck("pytorch#109948", [thread("MainThread", roles=["crashed"], native=FREED * 12)]),
    Stuck(
        "pytorch#109454",
        with_gil("""
        libcuda.so.1 ??
        libc10_cuda.so c10::cuda::CUDACachingAllocator::malloc(unsigned long)
        libtorch_cpu.so torch::autograd::VariableInfo::zeros(c10::OptionalDeviceGuard&) const
    """),
        {"torch": "2.0.1"},
    ),
    Stuck("pytorch#119393", with_gil("libcudart.so.12 cudaEventDestroy"), {"torch": "2.2.0"}),
    Stuck("pytorch#132520", with_gil("libcudart.so.12 cudaHostUnregister"), {"torch": "2.4.0"}),
    Stuck(
        "pytorch#104103", with_gil("libcuda.so.1 ??\nlibtorch_python.so THPVariable_item(_object*)"), {"torch": "2.0.1"}
    ),
    Stuck(
        "pytorch#109159",
        with_gil("libcuda.so.1 ??\nlibtorch_python.so THCPModule_cudaSynchronize(_object*)"),
        {"torch": "2.0.1"},
    ),
    Stuck("pytorch#100555", with_gil("libtorch_cpu.so c10d::TCPStore::TCPStore(std::string)"), {"torch": "2.0.0"}),
    Stuck(
        "nccl#2353",
        [
            thread("MainThread", native="libnccl.so.2 ncclLocalOpAppend\nlibnccl.so.2 SaveProxy", state="running"),
            thread("proxy", "condvar", native="libc.so.6 pthread_cond_wait\nlibnccl.so.2 ncclProxyProgress(void*)"),
        ],
        {"nccl": "2.28.9"},
        architecture="aarch64",
    ),
    Stuck(
        "nccl#992",
        [
            thread(
                "Thread-41",
                "join",
                roles=["other"],
                native="""
            libnccl.so.2 commFree
            libnccl.so.2 commCleanup
            libnccl.so.2 commReclaim
            libnccl.so.2 ncclCommAbort
            libtorch_cuda.so c10d::ProcessGroupNCCL::abort()
        """,
            ),
        ],
        {"nccl": "2.18.1"},
    ),
    Stuck(
        "pytorch#149153",
        [
            thread(
                "MainThread",
                "futex",
                native="""
            libstdc++.so.6 std::__atomic_futex_unsigned_base::_M_futex_wait_until_steady
            libtorch_cuda.so c10d::ProcessGroupNCCL::waitForFutureOrTimeout(std::future<bool>&)
            libtorch_cuda.so c10d::ProcessGroupNCCL::abort()
        """,
            ),
            thread("aborts", native="libnccl.so.2 ncclCommAbort"),
        ],
        {"nccl": "2.25.1"},
    ),
    Stuck(
        "tokenizers#187",
        [
            thread("MainThread", "futex", roles=["main"], native="libc.so.6 syscall\ntokenizers.abi3.so ??"),
        ],
        {"tokenizers": "0.20.0"},
        relations=["forked", "one-thread"],
    ),
    Stuck(
        "grpc#13873",
        [
            thread(
                "MainThread",
                "futex",
                roles=["main"],
                native="libc.so.6 syscall\ncygrpc.cpython-36m-x86_64-linux-gnu.so ??",
            ),
        ],
        {"grpcio": "1.8.2"},
        relations=["forked", "one-thread"],
    ),
    Stuck(
        "wandb#12079",
        [
            thread(
                "pt_data_worker",
                "condvar",
                """
            ~/threading.py Condition.wait
            ~/concurrent/futures/_base.py Future.result
            @/wandb/sdk/lib/asyncio_manager.py AsyncioManager.run
            @/wandb/sdk/lib/service/service_connection.py ServiceConnection.api_cleanup_request
            @/wandb/apis/public/service_api.py _cleanup
            ~/weakref.py finalize.__call__
        """,
            ),
        ],
        {"wandb": "0.27.2"},
        relations=["forked", "one-thread"],
    ),
    Stuck("glibc#25847", [thread("waits", "condvar", lost_signal=True)], {"glibc": "2.36"}),
    Stuck(
        "KempnerForge#104",
        [
            thread(
                "MainThread",
                "collective",
                f"{C10D} barrier\n/src/kempnerforge/checkpoint/manager.py CheckpointManager.save",
                group="default_pg",
            ),
            thread(
                "AsyncCheckpointExecutor_0",
                "collective",
                f"""
            {C10D} gather_object
            @/torch/distributed/checkpoint/utils.py _DistWrapper.reduce_scatter
            @/torch/distributed/checkpoint/state_dict_saver.py _save_state_dict
            @/torch/distributed/checkpoint/_async_thread_executor.py save_wrapper
        """,
                roles=["other"],
                group="default_pg",
            ),
        ],
        {"torch": "2.11.0"},
    ),
    Stuck(
        "pytorch#136892",
        [
            thread("traces", "gil", native="libtorch_cpu.so torch::profiler::impl::recordOperatorStart(Observer&)"),
            thread(
                "all-gathers",
                "mutex",
                native="libc.so.6 pthread_mutex_lock\n"
                "libtorch_cpu.so torch::profiler::impl::recordOperatorStart(Observer&)",
                holds=["gil"],
            ),
        ],
        {"torch": "2.4.1"},
    ),
    Stuck(
        "pytorch#193859",
        [
            thread(
                "MainThread",
                "futex",
                native="libc.so.6 exit\nlibgomp.so.1 ??\nlibtorch_cpu.so at::internal::invoke_parallel",
            )
        ],
        {"torch": "2.13.0"},
    ),
    Stuck(
        "pytorch#181653",
        [
            thread(
                "MainThread",
                python=SIMPLIFIES * 3 + "@/torch/_inductor/codegen/cpp.py stride_at\n"
                "@/torch/_inductor/codegen/cpp.py CppKernelProxy.select_tiling",
                state="running",
            ),
        ],
        {"torch": "2.10.0"},
    ),
    Stuck(
        "pytorch#186537",
        [
            thread(
                "pt_autograd_0",
                python="""
            @/torch/_dynamo/convert_frame.py _compile
            @/torch/_dynamo/convert_frame.py ConvertFrame.__call__
            @/torch/utils/checkpoint.py _checkpoint_without_reentrant_generator.<locals>.recompute_fn
        """,
                roles=["other"],
                names=["pt_autograd_0"],
                state="running",
            ),
        ],
        {"torch": "2.12.0"},
    ),
    Stuck(
        "nccl#863",
        [
            thread(
                "MainThread",
                "join",
                native="libc.so.6 pthread_timedjoin_ex\nlibnccl.so.2 commReclaim(ncclComm*)\n"
                "libnccl.so.2 ncclCommAbort",
            ),
        ],
        {"nccl": "2.16.5"},
    ),
    Stuck(
        "nccl#774",
        [
            thread(
                "MainThread",
                native="libcuda.so.1 ??\nlibcudart.so.11.0 cudaLaunchKernel\n"
                "libnccl.so.2 ncclLaunchKernel(ncclComm*, ncclKernelPlan*)\nlibnccl.so.2 ncclGroupEnd",
                state="running",
            ),
            thread("proxy", "condvar", native="libc.so.6 pthread_cond_wait\nlibnccl.so.2 ncclProxyProgress(void*)"),
        ],
        {"nccl": "2.14.3"},
        {"CUDA_LAUNCH_BLOCKING": "1"},
    ),
    Stuck(
        "nccl#1808",
        [
            thread(
                "proxy service",
                native="libc.so.6 accept\nlibnccl.so.2 ncclSocketAccept(ncclSocket*, ncclSocket*)\n"
                "libnccl.so.2 ncclProxyService(void*)",
                state="running",
            ),
        ],
        {"nccl": "2.26.2"},
    ),
    Stuck(
        "tensorboard#6167",
        [thread("MainThread", "condvar", f"{WRITES}{WRITER} _AsyncWriter.write")],
        {"tensorboard": "2.11.0"},
    ),
]
"""What each page shows: made reports. Of those in KNOWN (support/recorded/scenarios.py) a real program is recorded as
well, those of tests/integration/known/test_real_programs.py are started there; of all others there is no more than
this."""
RUNS = thread("writes", "queue", f"~/queue.py Queue.get\n{WRITER} _AsyncWriterThread._run")
KEMPNER = next(each for each in STACKS if each.bug == "KempnerForge#104").threads
ALIKE = [
    Stuck("another group", [thread("MainThread", "collective", f"{C10D} barrier", group="gloo"), KEMPNER[1]]),
    Stuck("a group that is not known", [thread("MainThread", "collective", f"{C10D} barrier"), KEMPNER[1]]),
    Stuck("a corrected glibc", [thread("waits", "condvar", lost_signal=True)], {"glibc": "2.41"}),
    Stuck("no signal was lost", [thread("waits", "condvar")], {"glibc": "2.36"}),
    Stuck(
        "launches that do not wait", next(each for each in STACKS if each.bug == "nccl#774").threads, {"nccl": "2.14.3"}
    ),
    Stuck(
        "a simplification that ends",
        [thread("MainThread", python=SIMPLIFIES + "@/torch/_inductor/codegen/cpp.py stride_at", state="running")],
        {"torch": "2.10.0"},
    ),
    Stuck("no GIL", [thread("holds", "loader-lock"), thread("scans", "io", SCANNING)]),
    Stuck("another function", [thread("holds", "loader-lock"), thread("scans", "gil", "/a/threadpoolctl.py other")]),
    Stuck("another lock", [thread("holds", "mutex"), thread("scans", "gil", SCANNING)]),
    Stuck("another runtime", [thread("m", "worker-pool", native="libiomp5.so f", missing_workers="OpenMP")]),
    Stuck("workers are there", [thread("m", "worker-pool", native=TEAM)]),
    Stuck("a thread that begins", [*STACKS[3].threads, thread("new", "gil")]),
    Stuck("a thread that begins, and runs", [*STACKS[3].threads, thread("new", state="running")]),
    Stuck("a pool with workers", STACKS[2].threads, {"python": "3.12.1"}),
    Stuck("a corrected Python", STACKS[2].threads, {"python": "3.13.15"}, relations=["no-workers"]),
    Stuck("the writer runs", [*next(each for each in STACKS if each.bug == "tensorboard#6167").threads, RUNS]),
    Stuck("another architecture", next(each for each in STACKS if each.bug == "nccl#2353").threads, {"nccl": "2.28.9"}),
    Stuck("no fork", [thread("m", "futex", roles=["main"], native="tokenizers.abi3.so ??")]),
    Stuck(
        "switched off",
        next(each for each in STACKS if each.bug == "tokenizers#187").threads,
        environment={"TOKENIZERS_PARALLELISM": "false"},
        relations=["forked", "one-thread"],
    ),
]
