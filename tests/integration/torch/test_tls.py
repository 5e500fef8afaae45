"""Thread-local variables of real threads: libc10's dispatch key sets, against what each thread says of itself."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from gdbext.engine.glibc.thread_locals import ThreadLocals, ThreadLocalUntouched
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.modules import ModuleTable
from gdbext.engine.process.symbolizer import Symbolizer
from gdbext.engine.targets.live.proc_target import ProcTarget

pytestmark = [pytest.mark.torch, pytest.mark.gdb, pytest.mark.compiler]

SYMBOL = "_ZN3c104impl26raw_local_dispatch_key_setE"

PROGRAM = r"""
import contextlib, ctypes, json, sys, threading, time
native = threading.Event()
libc = ctypes.CDLL(None)
started_before_torch = threading.Thread(target=lambda: libc.sleep(1000), daemon=True)
started_before_torch.start()
import torch
C = torch._C
modes = {
    "plain": contextlib.nullcontext,
    "inference": torch.inference_mode,
    "below autograd": C._AutoDispatchBelowAutograd,
    "excluded": lambda: C._ExcludeDispatchKeyGuard(C.DispatchKeySet(C.DispatchKey.AutogradCPU)),
    "included": lambda: C._IncludeDispatchKeyGuard(C.DispatchKey.Conjugate),
    "both": lambda: C._ForceDispatchKeyGuard(
        C.DispatchKeySet(C.DispatchKey.Negative), C.DispatchKeySet(C.DispatchKey.Sparse)),
}
truth, barrier = {}, threading.Barrier(len(modes) + 1)
def body(name):
    with modes[name]():
        included, excluded = C._dispatch_tls_local_include_set(), C._dispatch_tls_local_exclude_set()
        truth[threading.get_native_id()] = [name, included.raw_repr(), excluded.raw_repr()]
        barrier.wait()
        time.sleep(1000)
for name in modes:
    threading.Thread(target=body, args=(name,), daemon=True).start()
barrier.wait()
included, excluded = C._dispatch_tls_local_include_set(), C._dispatch_tls_local_exclude_set()
truth[threading.get_native_id()] = ["main", included.raw_repr(), excluded.raw_repr()]
print(json.dumps([truth, started_before_torch.native_id]), flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def process() -> Iterator[tuple[int, dict[int, list[Any]], int]]:
    running = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True)
    try:
        assert running.stdout is not None
        truth, early = json.loads(running.stdout.readline())
        yield running.pid, {int(tid): values for tid, values in truth.items()}, early
    finally:
        running.kill()
        running.wait()


def test_dispatch_key_sets_of_every_thread(process: tuple[int, dict[int, list[Any]], int]) -> None:
    pid, truth, early = process
    differences = set()
    with ProcTarget(pid) as target:
        memory = Memory(target)
        modules = ModuleTable(target, memory)
        libc10 = modules.named("libc10.so")
        assert libc10 is not None
        index = Symbolizer(modules).index(libc10)
        assert index is not None
        offset = index.lookup(SYMBOL)[0].vaddr
        variables = ThreadLocals(memory, modules)
        fs_bases = {thread.tid: thread.registers()["fs_base"] for thread in target.threads()}
        for tid, (_, included, excluded) in truth.items():
            address = variables.address(fs_bases[tid], libc10, offset)
            found = memory.words(address, 2)
            differences.add((found[0] ^ included, found[1] ^ excluded))
        # c10 keeps both sets XORed with their defaults (c10/core/impl/LocalDispatchKeySet.h)
        assert len(differences) == 1, differences
        assert len({(included, excluded) for _, included, excluded in truth.values()}) >= 5
        with pytest.raises(ThreadLocalUntouched):
            variables.address(fs_bases[early], libc10, offset)


def test_every_library_with_thread_local_variables_is_found_or_refused(
    process: tuple[int, dict[int, list[Any]], int],
) -> None:
    """Blocks of different libraries do not overlap, in any thread."""
    with ProcTarget(process[0]) as target:
        memory = Memory(target)
        modules = ModuleTable(target, memory)
        finder = ThreadLocals(memory, modules)
        names = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libstdc++.so.6", "libgomp.so.1", "libc.so.6")
        for thread in target.threads():
            spans = []
            for name in names:
                module = modules.named(name)
                assert module is not None
                assert module.image is not None
                assert module.image.tls is not None
                try:
                    start = finder.block(thread.registers()["fs_base"], module)
                except ThreadLocalUntouched:
                    continue
                assert memory.try_read(start, module.image.tls.memsz) is not None
                spans.append((start, start + module.image.tls.memsz, name))
            spans.sort()
            assert all(first[1] <= second[0] for first, second in zip(spans, spans[1:])), spans
            assert {"libgomp.so.1", "libc.so.6"} <= {name for _, _, name in spans}
