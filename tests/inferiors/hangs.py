"""Programs with torch that hang, and some that only might seem to. Argument: the program, a function."""

import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import native_library
import torch
import torch_truth
import truth
from torch.utils.data import DataLoader, Dataset

for_ever = threading.Event()
"""Nothing here calls its set(), or that of another event: such a function might be the one that ends the wait."""
x = torch.ones(2)


def operators():
    """Our operators, and the same library with and without the GIL given up for its functions."""
    native_library.load_operators("operators")
    return native_library.load("operators"), native_library.load("operators", keep_gil=True)


def busy():
    """A training loop, as healthy as it gets; its operators are large, so that a look falls into one."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 1024), torch.nn.ReLU(), torch.nn.Linear(1024, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    batch, wanted = torch.randn(8192, 64), torch.randn(8192, 8)
    truth.thread("main", waits=None)
    truth.note(verdict="busy", busy=True)
    for turns in itertools.count():
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(batch), wanted).backward()
        optimizer.step()
        if turns == 3:
            truth.ready()


def meta_mm_spin():
    """As meta_mm.py, but the kernel loops for ever in C, without the GIL."""

    def meta_mm(keyset, a, b):
        truth.main_ready("running", kernel_keyset=truth.hexadecimal(keyset.raw_repr()))
        native_library.load("locks").spin()

    library = torch.library.Library("aten", "IMPL")
    library.impl("mm", meta_mm, "Meta", with_keyset=True)
    truth.note(verdict="busy", op="aten::mm", key="Meta", stage="in-kernel", busy=True)
    sizes = ((2, 4, 16), (8, 16))
    torch.nn.functional.linear(*(torch.randn(*size, device="meta", requires_grad=True) for size in sizes))


# --- locks -----------------------------------------------------------------------------------------


def cycle_with_gil(role, resource, first, kernel, name, **facts):
    """One thread has the resource, in an operator, and wants the GIL; the main thread has that and wants the resource,
    in another operator."""
    library = torch.library.Library("gdbext_test", "IMPL")
    library.impl(name, lambda x: kernel(), "CPU")
    operator = getattr(torch.ops.gdbext_test, name).default
    named = threading.Lock()
    named.acquire()

    def begin():
        truth.thread(role, waits="futex", waits_for="gil", holds=resource, op=f"gdbext_test::{first.__name__}")
        named.release()
        first()

    truth.start(begin, role)
    named.acquire()
    truth.thread("gil-holder", waits="futex", waits_for=resource, holds="gil", op=f"gdbext_test::{name}")
    truth.note(verdict="deadlock", cycle=[role, "gil-holder"], **facts)
    truth.stage()
    operator(x)


def gil_mutex():
    native, under_gil = operators()
    mutex = int(native_library.address(native, "first_mutex"), 16)
    operator = torch.ops.gdbext_test.lock_then_gil.default

    def lock_then_gil():
        operator(x, mutex, 2, 1)

    def kernel():
        under_gil.lock_with_gil(ctypes.c_void_p(mutex), 1, 2)

    cycle_with_gil("mutex-holder", "mutex", lock_then_gil, kernel, "gil_mutex", mutex=truth.hexadecimal(mutex))


def guard_entry():
    """The first call of an operator runs the initializer of the handle's static."""
    _, under_gil = operators()
    operator = torch.ops.gdbext_test.guarded.default

    def guarded():
        operator(x)

    cycle_with_gil("initializer", "static-init", guarded, under_gil.call_handle_with_gil, "gil_guard")


def mutex_abba():
    native, _ = operators()
    mutexes = [native_library.address(native, f"{name}_mutex") for name in ("first", "second")]
    operator = torch.ops.gdbext_test.lock_in_order.default
    named, go = threading.Barrier(3), threading.Barrier(3)

    def work(number):
        mine, wanted = mutexes[number], mutexes[1 - number]
        truth.thread(f"worker-{number}", waits="futex", holds=mine, waits_for=wanted, op="gdbext_test::lock_in_order")
        named.wait()
        go.wait()
        operator(x, int(mine, 16), int(wanted, 16), 2)

    for number in range(2):
        truth.start(work, f"worker-{number}", (number,))
    named.wait()
    truth.note(verdict="deadlock", cycle=["worker-0", "worker-1"])
    truth.stage()
    go.wait()
    for_ever.wait()


def fork_mutex():
    """Another thread holds a mutex while the process forks; the child's kernel locks it."""
    native, _ = operators()
    locks = native_library.load("locks")
    mutex = native_library.address(native, "first_mutex")
    held, owner = threading.Barrier(2), []

    def hold():
        owner.append(threading.get_native_id())
        locks.lock(native.first_mutex)
        held.wait()
        for_ever.wait()

    truth.start(hold)
    held.wait()
    truth.go_on_in_child()
    truth.thread("main", waits="futex", waits_for=mutex, op="gdbext_test::lock_one")
    truth.note(verdict="orphaned-lock", mutex=mutex, owner=owner[0], op="gdbext_test::lock_one")
    truth.stage()
    torch.ops.gdbext_test.lock_one.default(x, int(mutex, 16), True)


# --- pools -----------------------------------------------------------------------------------------


class Reentrant(torch.autograd.Function):
    """Its backward runs another backward; beyond 60 levels the engine starts threads of its own."""

    @staticmethod
    def forward(ctx, value, depth):
        ctx.depth = depth
        return value.clone()

    @staticmethod
    def backward(ctx, gradient):
        if ctx.depth:
            with torch.enable_grad():
                Reentrant.apply(torch.ones(2, requires_grad=True), ctx.depth - 1).sum().backward()
        return gradient, None


def reentrant_backward():
    Reentrant.apply(torch.ones(2, requires_grad=True), 70).sum().backward()


def interop(value: torch.Tensor) -> torch.Tensor:
    future = torch.jit.fork(torch.neg, value)
    return torch.jit.wait(future)


def fork_openmp():
    """The parent has used the OpenMP pool; the forked child runs a parallel operator."""
    torch.set_num_threads(2)
    many = torch.rand(1 << 20)
    torch.exp(many)
    truth.go_on_in_child()
    truth.main_ready("futex", verdict="missing-workers", op="aten::exp", key="CPU")
    torch.exp(many)


def fork_interop():
    """The parent has used ATen's inter-op pool; the forked child waits for a future that nobody computes."""
    forked = torch.jit.script(interop)
    for _ in range(3):  # the first calls are optimised away or profiled
        forked(x)
    truth.go_on_in_child()
    truth.main_ready("futex", verdict="missing-workers")
    forked(x)


def pools():
    """OpenMP, BLAS, inter-op and reentrant autograd pools that have worked and wait; main waits for input."""
    torch.set_num_threads(2)
    torch.exp(torch.rand(1 << 20))
    torch.mm(torch.rand(512, 512), torch.rand(512, 512))
    reentrant_backward()
    torch.jit.script(interop)(x)
    executor = ThreadPoolExecutor(2)
    list(executor.map(torch.sum, [x] * 8))
    truth.main_ready("read", verdict="idle")
    sys.stdin.readline()


class StopsItself(Dataset):
    def __len__(self):
        return 2

    def __getitem__(self, index):
        os.kill(os.getpid(), signal.SIGSTOP)
        return index


def dataloader():
    batches = iter(DataLoader(StopsItself(), num_workers=1, multiprocessing_context="fork"))
    child = batches._workers[0].pid
    os.waitid(os.P_PID, child, os.WSTOPPED | os.WNOWAIT)
    truth.main_ready("poll", verdict="waiting-external", child=child, child_verdict="stopped")
    next(batches)


def gloo_mismatch(rank="0"):
    """Two ranks on the loopback; rank 0 is in all_reduce, rank 1 never enters it."""
    import torch.distributed as dist

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if rank == "0":
        subprocess.Popen([sys.executable, __file__, "gloo-mismatch", "1"])
    dist.init_process_group("gloo", store=dist.FileStore("store", 2), rank=int(rank), world_size=2)
    dist.barrier()
    if rank == "1":
        time.sleep(truth.FOREVER)
    truth.thread("main", waits="any")
    truth.note(verdict="waiting-external", wait="collective")
    threading.Timer(0, truth.ready).start()  # inside the collective: its backend threads start with the first one
    dist.all_reduce(torch.ones(4))


def named_rank():
    """A rank that its arguments name, and not the environment, waits for another one, while it handles an exception."""
    os.environ.update(RANK="0", WORLD_SIZE="5")
    truth.main_ready(None, says=["while it handles ValueError('bad batch 7')"], rank=1, size=2)
    try:
        raise ValueError("bad batch 7")
    except ValueError:
        meet = f"file://{os.getcwd()}/meet"
        torch.distributed.init_process_group("gloo", init_method=meet, rank=1, world_size=2)


def torchrun_agent():
    """It waits for another node."""
    from torch.distributed.run import main

    truth.main_ready(None, says=["the rendezvous 'job7' at 127.0.0.1:0, which 1 of 2 nodes have joined"])
    words = "--nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=127.0.0.1:0 --rdzv-id=job7 --rdzv-conf=is_host=1 none.py"
    main(words.split())


# --- nesting ---------------------------------------------------------------------------------------


def nested_normal():
    """Nesting that is as it should be, one kind per thread: Autograd, ADInplaceOrView, CPU of one operator; vmap over
    grad; a Python kernel that calls another operator, whose Python kernel waits."""
    warnings.simplefilter("ignore")
    staged = threading.Barrier(4)

    def kernel(*_):
        truth.thread(threading.current_thread().name, waits="any")
        staged.wait()
        for_ever.wait()

    library = torch.library.Library("aten", "IMPL")
    for name, key in (("mul_.Tensor", "CPU"), ("sin", "CPU"), ("cos", "Meta")):
        library.impl(name, kernel, key)
    library.impl("mm", lambda a, b: torch.cos(a), "Meta")
    meta = torch.ones(2, 2, device="meta", requires_grad=True)
    truth.start(lambda: torch.ones(3, requires_grad=True).clone().mul_(torch.ones(3, requires_grad=True)), "inplace")
    truth.start(
        lambda: torch.func.vmap(torch.func.grad(lambda value: torch.sin(value).sum()))(torch.ones(3, 2)), "functorch"
    )
    truth.start(lambda: torch.mm(meta, meta), "python")
    staged.wait()
    truth.note(verdict="blocked")
    truth.ready()
    for_ever.wait()


def python_recursion():
    """Two Python operators that call each other; the innermost one waits for ever. Autograd stands before each of them:
    a turn takes two passes through the dispatcher and four Python frames, more than the interpreter's limit allows."""
    depth, name = 37, "gdbext_test::py_pong"
    left = 2 * depth
    library = torch.library.Library("gdbext_test", "DEF")

    def next_turn(other, x):
        nonlocal left
        left -= 1
        if left > 0:
            return other(x)
        truth.thread("recursive", waits="any")
        truth.ready()
        for_ever.wait()
        return x

    def turn(other, x):
        return next_turn(other, x)

    def pong_kernel(x):
        return turn(torch.ops.gdbext_test.py_ping, x)

    def ping_kernel(x):
        return turn(torch.ops.gdbext_test.py_pong, x)

    for operator, kernel in (("py_ping", ping_kernel), ("py_pong", pong_kernel)):
        library.define(f"{operator}(Tensor x) -> Tensor")
        library.impl(operator, kernel, "CPU")
    keyset = torch_truth.call("gdbext_test::py_ping", x)["bits"]
    truth.note(verdict="runaway-recursion", op=name, ops=["gdbext_test::py_ping", name], keyset=keyset, depth=depth)
    sys.setrecursionlimit(100_000)
    threading.stack_size(512 << 20)
    worker = threading.Thread(target=torch.ops.gdbext_test.py_ping, args=(x,), daemon=True)
    worker.start()
    worker.join()


def fake_tensor_call():
    """A custom operator under FakeTensorMode, as make_fx and torch.compile call it, on one thread also with the Python
    dispatcher, as for symbolic sizes; its fake blocks. On a third thread its kernel blocks, given zeros that are not
    there."""
    from torch._dispatch.python import enable_python_dispatcher
    from torch._subclasses.fake_tensor import FakeTensorMode

    library = torch.library.Library("gdbext_fake", "DEF")
    library.define("custom(Tensor x) -> Tensor")
    custom, there = torch.ops.gdbext_fake.custom, threading.Barrier(3)

    def wait(role):
        truth.thread(role, waits="any")
        if there.wait() == 0:
            truth.ready()
        for_ever.wait()

    @torch.library.register_fake("gdbext_fake::custom")
    def fake(x):
        wait(threading.current_thread().name)

    def under_python_dispatcher():
        with FakeTensorMode(), enable_python_dispatcher():
            custom(torch.empty(3, requires_grad=True))

    library.impl("custom", lambda x: wait("zeros"), "CPU")
    truth.start(under_python_dispatcher, "dispatcher")
    truth.start(lambda: custom(torch._efficientzerotensor(3)))
    threading.current_thread().name = "main"
    with FakeTensorMode():
        custom(torch.empty(3, requires_grad=True))


def dispatch_tensors():
    """Tensors, their addresses, and the keysets that PyTorch says they have."""
    warnings.simplefilter("ignore")
    tensors = {
        "plain": torch.zeros(4, 4),
        "grad": torch.zeros(2, 3, requires_grad=True),
        "meta": torch.empty(2, 4, 16, device="meta", requires_grad=True),
        "complex": torch.zeros(2, dtype=torch.complex64).conj(),
        "sparse": torch.eye(3).to_sparse(),
        "nested": torch.nested.nested_tensor([torch.ones(1), torch.ones(2)]),
    }
    told = {
        name: {"address": truth.hexadecimal(tensor._cdata), "bits": torch_truth.tensor_keyset(tensor)}
        for name, tensor in tensors.items()
    }
    truth.main_ready(tensors=told)
    for_ever.wait()


if __name__ == "__main__":
    program, *rest = sys.argv[1:]
    globals()[program.replace("-", "_")](*rest)
