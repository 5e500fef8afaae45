"""The stacks of known bugs as the pages of their entries print them, mostly without the frames that no entry names: for
programs that hang by chance, on hardware, or with versions that are not here."""

# ruff: noqa: E501

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from gdbext.known.signatures import ThreadFacts

PLACES = {"~": "/usr/lib/python3.13", "@": "/env/lib/python3.13/site-packages", "/": "/"}
"""How the path of a Python file begins: Python's library, installed packages, anything else."""
PAGES = """
joblib/threadpoolctl#239
  holds loader-lock
    libc.so.6 dl_iterate_phdr
    libgcc_s.so.1 _Unwind_Find_FDE
    _multiarray_umath.cpython-313-x86_64-linux-gnu.so array_add
  scans gil
    @/threadpoolctl.py ThreadpoolController._find_libraries_with_dl_iterate_phdr
    @/threadpoolctl.py ThreadpoolController.__init__
gcc#52303
  MainThread worker-pool missing_workers=OpenMP
    libc.so.6 syscall
    libgomp-98.so.1 ??
    libtorch_cpu.so at::parallel_for
cpython#115634 python=3.13.14 +no-workers
  MainThread condvar
    ~/concurrent/futures/_base.py Future.result
  Thread-1 worker-pool
    ~/concurrent/futures/process.py _ExecutorManagerThread.wait_result_broken_or_wakeup
cpython#140746 python=3.12.3
  serves condvar
    ~/threading.py Event.wait
    ~/threading.py Thread.start
cpython#146313 python=3.13.9
  MainThread child-process
    ~/multiprocessing/resource_tracker.py ResourceTracker._stop_locked
    ~/multiprocessing/resource_tracker.py ResourceTracker.__del__
cpython#94777 python=3.10.5
  manager join
    ~/multiprocessing/queues.py Queue.join_thread
    ~/concurrent/futures/process.py _ExecutorManagerThread._join_executor_internals
    ~/concurrent/futures/process.py _ExecutorManagerThread.join_executor_internals
    ~/concurrent/futures/process.py _ExecutorManagerThread.run
    ~/concurrent/futures/process.py _ExecutorManagerThread.terminate_broken
  feeder io
    ~/multiprocessing/connection.py Connection._send
    ~/multiprocessing/connection.py Connection.send_bytes
    ~/multiprocessing/queues.py Queue._feed
cpython#105829 python=3.12.0
  MainThread io
    ~/multiprocessing/connection.py Connection._send
    ~/concurrent/futures/process.py _ThreadWakeup.wakeup
    ~/concurrent/futures/process.py ProcessPoolExecutor.submit
  manager python-lock
    ~/concurrent/futures/process.py _ExecutorManagerThread.wait_result_broken_or_wakeup
cpython#125451 python=3.13.0
  manager join
    ~/multiprocessing/queues.py Queue.join_thread
    ~/concurrent/futures/process.py _ExecutorManagerThread.run
  feeder python-lock
    ~/concurrent/futures/process.py _SafeQueue._on_queue_feeder_error
    ~/multiprocessing/queues.py Queue._feed
cpython#119710 python=3.14.6 +no-children
  MainThread io
    task
      ~/asyncio/base_subprocess.py BaseSubprocessTransport._wait
      ~/asyncio/subprocess.py Process.wait
cpython#123720 python=3.12.1
  MainThread io
    task
      ~/asyncio/base_events.py Server.wait_closed
      ~/asyncio/base_events.py Server.serve_forever
pytorch#182948 torch=2.10.0+cu128
  MainThread python-lock
    @/torch/cuda/__init__.py _lazy_call
    @/torch/cuda/__init__.py _lazy_call
pytorch#135298 torch=2.4.0
  MainThread mutex
    libc.so.6 pthread_mutex_lock
    libtorch_python.so torch::dynamo::autograd::compiled_autograd(std::shared_ptr<torch::autograd::Node> const&)
    libtorch_cpu.so torch::autograd::Engine::execute(int)
    libtorch_python.so torch::dynamo::autograd::compiled_autograd(std::shared_ptr<torch::autograd::Node> const&)
pytorch#97833 torch=2.0.0
  frees gil
    libtorch_python.so std::_Sp_counted_ptr_inplace<StackContext, std::allocator<StackContext>, 2>::_M_dispose()
  allocates mutex
    libc10_cuda.so c10::cuda::CUDACachingAllocator::Native::DeviceCachingAllocator::malloc(int, unsigned long)
pytorch#58382 torch=1.8.1
  completes gil
    libtorch_cpu.so c10::ivalue::Future::markCompleted(c10::IValue)
  asks mutex holds=gil
    libtorch_cpu.so c10::ivalue::Future::hasValue() const
pytorch#130610 +forked +one-thread
  pt_data_worker libc-lock roles=main
    libc.so.6 __cxa_atexit
pytorch#75147
  MainThread mutex
    libiomp5.so __kmp_lock_suspend_mx
    libiomp5.so __kmp_set_num_threads
pytorch#189290 torch=2.12.0 +no-child:compile_worker
  reader io
    @/torch/_inductor/compile_worker/subproc_pool.py _recv_msg
    @/torch/_inductor/compile_worker/subproc_pool.py SubprocPool._read_thread
  MainThread condvar
    ~/concurrent/futures/_base.py Future.result
    @/torch/_inductor/async_compile.py AsyncCompile.wait
pytorch#179291
  pt_gloo roles=crashed
    libc.so.6 abort
    libc.so.6 pthread_exit
    libtorch_cpu.so c10d::ProcessGroupGloo::runLoop(int)
pytorch#109948
  MainThread roles=crashed
    libtorch_cpu.so torch::autograd::Node::~Node()
    libtorch_cpu.so torch::autograd::generated::SelectBackward0::~SelectBackward0()
    libtorch_cpu.so torch::autograd::deleteNode(torch::autograd::Node*)
    libtorch_cpu.so std::_Sp_counted_base<(__gnu_cxx::_Lock_policy)2>::_M_release_last_use_cold()
    times 12
pytorch#109454 torch=2.0.1
  MainThread state=running holds=gil
    libcuda.so.1 ??
    libtorch_cpu.so torch::autograd::VariableInfo::zeros(c10::OptionalDeviceGuard&) const
  other gil
pytorch#119393 torch=2.2.0
  MainThread state=running holds=gil
    libcudart.so.12 cudaEventDestroy
  other gil
pytorch#132520 torch=2.4.0
  MainThread state=running holds=gil
    libcudart.so.12 cudaHostUnregister
  other gil
pytorch#104103 torch=2.0.1
  MainThread state=running holds=gil
    libcuda.so.1 ??
    libtorch_python.so THPVariable_item(_object*)
  other gil
pytorch#109159 torch=2.0.1
  MainThread state=running holds=gil
    libcuda.so.1 ??
    libtorch_python.so THCPModule_cudaSynchronize(_object*)
  other gil
pytorch#100555 torch=2.0.0
  MainThread state=running holds=gil
    libtorch_cpu.so c10d::TCPStore::TCPStore(std::string)
  other gil
nccl#2353 nccl=2.28.9 arch=aarch64
  MainThread state=running
    libnccl.so.2 ncclLocalOpAppend
  proxy condvar
    libnccl.so.2 ncclProxyProgress(void*)
nccl#992 nccl=2.18.1
  Thread-41 join roles=other
    libnccl.so.2 commFree
    libnccl.so.2 ncclCommAbort
pytorch#149153 nccl=2.25.1
  MainThread futex
    libtorch_cuda.so c10d::ProcessGroupNCCL::waitForFutureOrTimeout(std::future<bool>&)
    libtorch_cuda.so c10d::ProcessGroupNCCL::abort()
  aborts
    libnccl.so.2 ncclCommAbort
tokenizers#187 tokenizers=0.20.0 +forked +one-thread
  MainThread futex roles=main
    libc.so.6 syscall
    tokenizers.abi3.so ??
grpc#13873 grpcio=1.8.2 +forked +one-thread
  MainThread futex roles=main
    cygrpc.cpython-36m-x86_64-linux-gnu.so ??
wandb#12079 wandb=0.27.2 +forked +one-thread
  pt_data_worker condvar
    ~/concurrent/futures/_base.py Future.result
    @/wandb/sdk/lib/asyncio_manager.py AsyncioManager.run
    @/wandb/apis/public/service_api.py _cleanup
glibc#25847 glibc=2.36
  waits condvar lost_signal=yes
KempnerForge#104 torch=2.11.0
  MainThread collective group=default_pg
    @/torch/distributed/distributed_c10d.py barrier
  AsyncCheckpointExecutor_0 collective group=default_pg roles=other
    @/torch/distributed/distributed_c10d.py gather_object
    @/torch/distributed/checkpoint/state_dict_saver.py _save_state_dict
pytorch#136892 torch=2.4.1
  traces gil
    libtorch_cpu.so torch::profiler::impl::recordOperatorStart(Observer&)
  all-gathers mutex holds=gil
    libtorch_cpu.so torch::profiler::impl::recordOperatorStart(Observer&)
pytorch#193859 torch=2.13.0
  MainThread futex
    libc.so.6 exit
    libgomp.so.1 ??
pytorch#181653 torch=2.10.0
  MainThread state=running
    @/sympy/core/basic.py Basic.replace.<locals>.walk
    @/sympy/core/basic.py Basic.replace
    @/sympy/simplify/simplify.py simplify
    times 3
    @/torch/_inductor/codegen/cpp.py stride_at
pytorch#186537 torch=2.12.0
  pt_autograd_0 state=running roles=other names=pt_autograd_0
    @/torch/_dynamo/convert_frame.py _compile
    @/torch/utils/checkpoint.py _checkpoint_without_reentrant_generator.<locals>.recompute_fn
nccl#863 nccl=2.16.5
  MainThread join
    libnccl.so.2 commReclaim(ncclComm*)
    libnccl.so.2 ncclCommAbort
nccl#774 nccl=2.14.3 $CUDA_LAUNCH_BLOCKING=1
  MainThread state=running
    libcudart.so.11.0 cudaLaunchKernel
    libnccl.so.2 ncclLaunchKernel(ncclComm*, ncclKernelPlan*)
  proxy condvar
    libnccl.so.2 ncclProxyProgress(void*)
nccl#1808 nccl=2.26.2
  proxy-service state=running
    libnccl.so.2 ncclSocketAccept(ncclSocket*, ncclSocket*)
    libnccl.so.2 ncclProxyService(void*)
tensorboard#6167 tensorboard=2.11.0
  MainThread condvar
    ~/threading.py Condition.wait
    @/tensorboard/summary/writer/event_file_writer.py _AsyncWriter.write
"""
"""The id of an entry, and of its process versions, $environment, +relations and arch. Threads: label, what it waits for,
and facts. Their frames, the innermost first: Python's are "file function", native ones "library function". "times" says
how often those before it come; those of a task of an event loop are below "task".

Of those in KNOWN (support/recorded/scenarios.py) a real program is recorded as well, those of
tests/integration/known/test_real_programs.py are started there; of all others there is no more than this."""
NOTHING: Mapping[str, str] = MappingProxyType({})


class Stuck(NamedTuple):
    """A process as its page shows it. ``bug``: the id of the entry that fits, or a name."""

    bug: str
    threads: Sequence[ThreadFacts]
    versions: Mapping[str, str] = NOTHING
    environment: Mapping[str, str] = NOTHING
    relations: Sequence[str] = ()
    architecture: str = "x86_64"


def blocks(lines: Sequence[str], indent: int) -> Iterator[list[str]]:
    """Each line of that indent, with those below it."""
    starts = [number for number, line in enumerate(lines) if line[indent] != " "]
    for start, end in zip(starts, [*starts[1:], len(lines)]):
        yield list(lines[start:end])


def parsed(page: Sequence[str]) -> Stuck:
    bug, *words = page[0].split()
    versions = dict(word.split("=") for word in words if word[0] not in "$+")
    environment = dict(word[1:].split("=") for word in words if word[0] == "$")
    relations = [word[1:] for word in words if word[0] == "+"]
    architecture = versions.pop("arch", "x86_64")
    return Stuck(bug, [_thread(each) for each in blocks(page[1:], 2)], versions, environment, relations, architecture)


def _thread(lines: Sequence[str]) -> ThreadFacts:
    label, *words = lines[0].split()
    facts: dict[str, Any] = dict(word.split("=") for word in words if "=" in word)
    facts.update({name: facts[name].split(",") for name in ("roles", "holds", "names") if name in facts})
    waits_for = next((word for word in words if "=" not in word), "")
    frames: list[str] = []
    tasks = []
    for line, *inner in blocks(lines[1:], 4):
        if line.startswith("    task"):
            tasks.append(_python(inner))
        elif line.startswith("    times"):
            frames *= int(line.split()[1])
        else:
            frames.append(line)
    native = [line.strip().partition(" ") for line in frames if line[4] not in PLACES]
    stack = [((lambda name=name: (name,)), library) for library, _, name in native]
    return ThreadFacts(
        label, _python(frames), waits_for, facts.pop("missing_workers", ""), lambda: stack, tasks=tasks, **facts
    )


def _python(frames: Sequence[str]) -> list[tuple[str, str]]:
    words = [line.split() for line in frames if line.strip()[0] in PLACES]
    return [(PLACES[file[0]] + file[1:], function) for file, function in words]


def changed(name: str, bug: str, old: str, new: str) -> Stuck:
    (page,) = [each for each in STACK_PAGES if each[0].split()[0] == bug]
    text = "\n".join(page)
    assert old in text, name
    return parsed(text.replace(old, new, 1).split("\n"))._replace(bug=name)


STACK_PAGES = list(blocks(PAGES.strip().split("\n"), 0))
STACKS = [parsed(page) for page in STACK_PAGES]
ALIKE = [
    changed("another group", "KempnerForge#104", "group=default_pg", "group=gloo"),
    changed("a group that is not known", "KempnerForge#104", "group=default_pg", ""),
    changed("a corrected glibc", "glibc#25847", "glibc=2.36", "glibc=2.41"),
    changed("no signal was lost", "glibc#25847", "lost_signal=yes", ""),
    changed("launches that do not wait", "nccl#774", "$CUDA_LAUNCH_BLOCKING=1", ""),
    changed("a simplification that ends", "pytorch#181653", "times 3", "times 1"),
    changed("no GIL", "joblib/threadpoolctl#239", "scans gil", "scans io"),
    changed("another function", "joblib/threadpoolctl#239", "._find_libraries_with_dl_iterate_phdr", ".other"),
    changed("another lock", "joblib/threadpoolctl#239", "loader-lock", "mutex"),
    changed("another runtime", "gcc#52303", "libgomp-98.so.1 ??", "libiomp5.so f"),
    changed("workers are there", "gcc#52303", "missing_workers=OpenMP", ""),
    changed("a thread that begins", "cpython#140746", "Thread.start", "Thread.start\n  new gil"),
    changed("a thread that begins, in the kernel", "cpython#140746", "Thread.start", "Thread.start\n  new io"),
    changed("a thread that begins, and runs", "cpython#140746", "Thread.start", "Thread.start\n  new state=running"),
    changed("a pool with workers", "cpython#115634", "+no-workers", ""),
    changed("a corrected Python", "cpython#115634", "python=3.13.14", "python=3.13.15"),
    changed(
        "the writer runs",
        "tensorboard#6167",
        "_AsyncWriter.write",
        "_AsyncWriter.write\n  writes queue\n    ~/queue.py Queue.get\n    @/tensorboard/summary/writer/event_file_writer.py _AsyncWriterThread._run",
    ),
    changed("another architecture", "nccl#2353", "arch=aarch64", ""),
    changed("no fork", "tokenizers#187", "+forked +one-thread", ""),
    changed("switched off", "tokenizers#187", "+forked", "$TOKENIZERS_PARALLELISM=false +forked"),
]
