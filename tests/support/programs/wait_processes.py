"""Made-up processes for the recognizers of waits: memory by address, threads by the functions on their stacks."""

from __future__ import annotations

import struct
from types import MappingProxyType
from typing import ClassVar

from gdbext.cpython.abi.assumed_names import Waitable
from gdbext.cpython.sync.locks import GilState
from gdbext.cpython.sync.python_wait import PythonWait
from gdbext.cpython.threads.frame_reader import PythonFrame
from gdbext.cpython.threads.runtime import NO_PYTHON, ThreadTable
from gdbext.cpython.wait_view import PythonWaitView
from gdbext.diagnosis.report.thread_report import RunState
from gdbext.diagnosis.waits.recognize import state_of
from gdbext.diagnosis.waits.snapshot import ProcessSnapshot, ThreadSnapshot
from gdbext.engine.process.memory import Memory
from gdbext.engine.process.symbolizer import Function
from gdbext.engine.targets.system.peer import Peer, PeerKind, listed
from gdbext.engine.targets.system.procfs import NO_PROCFS
from gdbext.engine.unwind.frame_steps import NativeFrame
from support.fakes.fake_target import FakeTarget

DATA, CODE, STACK, TLS = 0x10000, 0x500000, 0x700000, 0x800000
PC = CODE + 0x100
NO_PYTHON_WAITS = PythonWaitView(ThreadTable(NO_PYTHON, None), None)
FUTEX, RESTART = 202, -516 & (1 << 64) - 1
PRIVATE, BITSET = 128, 9 | 128


def pages(raw):
    return bytes(raw) + bytes(-len(raw) % 0x1000)


class Module:
    def __init__(self, name, start):
        self.name, self.start, self.end, self.base = name, start, start + 0x10000, start
        self.image = None


_LIBRARIES = """
libc.so.6 libgomp.so.1 libtorch_cpu.so app.so libpython3.11.so.1.0 libstdc++.so.6 cv2.abi3.so libjax_common.so
onnxruntime_pybind11_state.so libjemalloc.so.2 libcuda.so.1 libcudart.so.13 libtorch_cuda.so libnccl.so.2
_polars_runtime.abi3.so
"""
MODULES = {name: Module(name, 0x20000000 + number * 0x100000) for number, name in enumerate(_LIBRARIES.split())}


class Process:
    """Memory by address and threads by (module, function name or None) from the innermost frame on."""

    def __init__(self, objects=None):
        self.target = FakeTarget({CODE: pages(bytes(0xFE) + b"\x0f\x05"), STACK: pages(bytes(1))})
        for address, raw in (objects or {}).items():
            self.target.regions[address] = pages(raw)
        self.symbols = {}
        self.specs = []
        self.mappings = ()

    def thread(self, tid, frames, call=FUTEX, args=(), rax=RESTART, registers=None, python=(), dispatch=(), name=None):
        self.specs.append((tid, frames, call, args, rax, registers or {}, python, dispatch, name))
        self.target.regions[TLS + tid * 0x1000] = pages(bytes(0x2D0) + struct.pack("<I", tid))
        return self

    def snapshot(self, tid=None, python=NO_PYTHON_WAITS, procfs=NO_PROCFS):
        memory = Memory(self.target)
        tids = frozenset(spec[0] for spec in self.specs)
        process = ProcessSnapshot(memory, self, self, min(tids), tids, python=python, procfs=procfs)
        for spec in self.specs:
            process.threads.append(self._snapshot(process, *spec))
        return process.thread(tid if tid is not None else min(tids))

    @staticmethod
    def _snapshot(process, tid, frames, call, args, rax, registers, python, dispatch, name):
        values = dict(zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), [*args, 0, 0, 0, 0, 0, 0]))
        state = {"rip": PC, "rsp": STACK, "rax": rax, "orig_rax": call, "fs_base": TLS + tid * 0x1000, **values}
        return ThreadSnapshot(process, tid, state, Stack(frames, registers), None, python, dispatch, name=name)

    def names_at(self, address):
        return self.symbols.get(address, ())

    def find(self, address):
        return next((m for m in MODULES.values() if m.start <= address < m.end), None)

    def mapping_at(self, _address):
        return None


class Stack:
    def __init__(self, frames, registers):
        self.frames, self.functions = [], []
        self.path = tuple(frames)
        for level, (module, name) in enumerate(frames):
            home = MODULES[module]
            start = home.start + sum(map(ord, name or "?")) % 0xF000
            frame = {"rip": start + 8, "rsp": STACK + level * 64, **(registers if level in (0, 1, 2) else {})}
            pc, sp, cfa = frame["rip"], frame["rsp"], STACK + level * 64 + 64
            self.frames.append(NativeFrame(level, pc, sp, frame, cfa, "cfi", False, start + 8, home))
            self.functions.append(Function(start, 64, (name,), home) if name else None)

    def function(self, level):
        return self.functions[level]


MUTEX_STACK = [("libc.so.6", None), ("libc.so.6", "pthread_mutex_lock"), ("app.so", "work")]
LOOP = ("libpython3.11.so.1.0", "_PyEval_EvalFrameDefault")


def mutex(lock=2, owner=0, users=1, kind=0):
    return struct.pack("<IIiII", lock, 0, owner, users, kind) + bytes(20)


def wait_of(process, tid=None, python=NO_PYTHON_WAITS, procfs=NO_PROCFS):
    found = state_of(process.snapshot(tid, python, procfs))
    assert found.state is RunState.WAITING, found
    return found.wait


def gil(**changes):
    ranges = {"cond": (0, 48), "mutex": (48, 88), "switch_cond": (88, 136), "switch_mutex": (136, 176)}
    values = {"ranges": tuple((DATA + start, DATA + end) for start, end in ranges.values())}
    values.update(address=DATA, interpreter=0, interpreters=(0,), locked=True, holder=0xAA, holder_tid=2)
    values.update(last_holder=0xAA, mutex_owner=None)
    return GilState(**{**values, **changes})


NONE = MappingProxyType({})


class Answers:
    """Has the methods of NOTHING, which know nothing."""

    NOTHING: ClassVar = {}

    def __getattr__(self, name):
        if name not in self.NOTHING:
            raise AttributeError(name)
        return lambda *_: self.NOTHING[name]


class Outside(Answers):
    NOTHING: ClassVar = {
        **dict.fromkeys(
            ("lock_holder", "locked_elsewhere", "locked_here", "sharers", "process_of", "has_open", "clock")
        ),
        "epoll_fds": (),
        "is_named_pipe": False,
        "handled_signals": [15],
    }

    def __init__(self, *children, other_ends=NONE, parent=None):
        self.peers, self._other_ends = self, other_ends
        self.children = lambda: {child.pid: child for child in children}
        self.forked_from = lambda: parent
        self.descriptor = lambda fd: "pipe:[7]" if fd in other_ends else ""
        self.file_exists = lambda path: path == "/lock"

    def peer_of(self, link, _call_writes):
        """The fake descriptors are pipes of one number: any of them has the ends of all."""
        processes = tuple(each for ends in self._other_ends.values() for each in ends)
        text = f"with process{'es' if len(processes) > 1 else ''} {listed(processes)} at the other end"
        return Peer(PeerKind.PIPE, text, processes) if link else None

    def absolute(self, path):
        return path if path.startswith("/") else f"/work/{path}"

    def file_lock(self, path):
        return Peer(PeerKind.FILE_LOCK, "locked by process 9") if path == "/held" else None


class Python(PythonWaitView):
    """Has no threads, and knows what it is given."""

    def __init__(
        self,
        *gils,
        natives=NONE,
        users=NONE,
        owing=NONE,
        inside=(),
        inside_objects=NONE,
        inside_try=(),
        polled_objects=(),
        ended=(),
        taken=False,
        taken_twice=(),
        wait=None,
    ):
        super().__init__(ThreadTable(NO_PYTHON, None), None)
        self.gils = gils
        self.native_id = natives.get
        self.users_of = lambda address: users.get(address, ())
        self.loop_owing = owing.get
        self.inside_with = lambda _semaphore: inside
        self.inside_object = lambda address: inside_objects.get(address, ())
        self.likely_holders = lambda _semaphore, waiter: [tid for tid, number in inside_try if number or tid != waiter]
        self.polled_objects = lambda _tid: polled_objects
        self.has_no_thread = ended.__contains__
        self.is_taken_elsewhere = lambda _tid, _semaphore: taken
        self.has_taken = lambda tid, _semaphore: tid in taken_twice
        self.wait = lambda _tid, _semaphore: wait
        self.tid_of_ident = lambda ident: ident
        self.tid_of_state = {0xAA: 2}.get

    def __bool__(self):
        return True


LOCK_STACK = [("libc.so.6", None), ("libc.so.6", None), ("libpython3.11.so.1.0", "PyThread_acquire_lock_timed"), LOOP]


def python_wait(kind, **more):
    return PythonWait(Waitable(kind), 0x9000, PythonFrame("wait", "/lib/threading.py", 1, 0, 0), **more)
