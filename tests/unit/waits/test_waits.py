"""Waits from registers, names and memory: each recogniser on made-up processes, and what must not be believed."""

from __future__ import annotations

import struct

import pytest
from fake_target import FakeTarget

from gdbext.cpython.abi.waitable import Waitable
from gdbext.cpython.sync.gil import GilState
from gdbext.cpython.sync.python_wait import PythonWait
from gdbext.model.certainty import Certainty
from gdbext.model.frame import Frame, FrameKind
from gdbext.model.pool import MissingWorkers, Pool
from gdbext.model.thread import RunState
from gdbext.model.wait import Owner
from gdbext.process import syscalls
from gdbext.process.memory import Memory
from gdbext.process.symbols import Function
from gdbext.unwind.unwinder import NativeFrame
from gdbext.waits.function_tag import FunctionTag, tags_of
from gdbext.waits.python import python_waits
from gdbext.waits.recognise import state_of
from gdbext.waits.snapshot import ProcessSnapshot, ThreadSnapshot

DATA, CODE, STACK, TLS = 0x10000, 0x500000, 0x700000, 0x800000
PC = CODE + 0x100
FUTEX, RESTART = 202, -516 & (1 << 64) - 1
PRIVATE, BITSET = 128, 9 | 128


def pages(raw):
    """Contents padded to whole pages, as memory comes."""
    return bytes(raw) + bytes(-len(raw) % 0x1000)


class Module:
    def __init__(self, name, start):
        self.name, self.start, self.end, self.base = name, start, start + 0x10000, start


MODULES = {name: Module(name, 0x20000000 + number * 0x100000) for number, name in enumerate(
    ("libc.so.6", "libgomp.so.1", "libtorch_cpu.so", "app.so", "libpython3.11.so.1.0"))}  # fmt: skip


class Process:
    """Memory by address and threads by (module, function name or None) from the innermost frame on."""

    def __init__(self, objects=None):
        self.target = FakeTarget({CODE: pages(bytes(0xFE) + b"\x0f\x05"), STACK: pages(bytes(1))})
        for address, raw in (objects or {}).items():
            self.target.regions[address] = pages(raw)
        self.symbols = {}
        self.specs = []

    def thread(self, tid, frames, call=FUTEX, args=(), rax=RESTART, registers=None, python=(), dispatch=()):
        self.specs.append((tid, frames, call, args, rax, registers or {}, python, dispatch))
        self.target.regions[TLS + tid * 0x1000] = pages(bytes(0x2D0) + struct.pack("<I", tid))
        return self

    def look(self, tid=None, python=None):
        memory = Memory(self.target)
        tids = frozenset(spec[0] for spec in self.specs)
        process = ProcessSnapshot(memory, self, self, min(tids), tids, python=python)
        for spec in self.specs:
            process.threads.append(self._look(process, *spec))
        return process.thread(tid if tid is not None else min(tids))

    @staticmethod
    def _look(process, tid, frames, call, args, rax, registers, python, dispatch):
        values = dict(zip(("rdi", "rsi", "rdx", "r10", "r8", "r9"), [*args, 0, 0, 0, 0, 0, 0]))
        state = {"rip": PC, "rsp": STACK, "rax": rax, "orig_rax": call, "fs_base": TLS + tid * 0x1000, **values}
        return ThreadSnapshot(process, tid, state, Stack(frames, registers), None, python, dispatch)

    def names_at(self, address):
        return self.symbols.get(address, ())

    def find(self, address):
        return next((m for m in MODULES.values() if m.start <= address < m.end), None)

    def mapping_at(self, _address):
        return None


class Stack:
    def __init__(self, frames, registers):
        self.frames, self.functions = [], []
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


def wait_of(process, tid=None, python=None):
    found = state_of(process.look(tid, python))
    assert found.state is RunState.WAITING, found
    return found.wait


# --- system calls --------------------------------------------------------------------------------


def call_of(**registers):
    memory = Memory(FakeTarget({CODE: pages(bytes(0xFE) + b"\x0f\x05")}))
    return syscalls.blocked({"rip": PC, "rax": RESTART, "orig_rax": 202, "rdi": 5, **registers}, memory)


def test_a_blocked_call_and_its_arguments():
    found = call_of()
    assert found is not None
    assert (found.name, found.arguments[0]) == ("futex", 5)


@pytest.mark.parametrize("registers", [
    {"orig_rax": (1 << 64) - 1}, {"rax": 0}, {"rip": PC + 1}, {"orig_rax": -256 & (1 << 64) - 1},
])  # fmt: skip
def test_a_thread_in_user_code_is_in_no_call(registers):
    assert call_of(**registers) is None


def test_a_restarted_call_is_named_by_the_code_before_it():
    code = bytes(0xF0) + b"\xb8\xe6\x00\x00\x00" + bytes(9) + b"\x0f\x05" + bytes(16)
    memory = Memory(FakeTarget({CODE: pages(code)}))
    found = syscalls.blocked({"rip": PC, "rax": RESTART, "orig_rax": 219}, memory)
    assert found is not None
    assert found.name == "clock_nanosleep"


def test_a_call_that_the_kernel_will_make_again():
    assert call_of(rip=PC - 2) is not None


# --- glibc ---------------------------------------------------------------------------------------


def test_a_mutex_with_its_owner():
    process = Process({DATA: mutex(owner=2)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)).thread(2, [])
    process.symbols[DATA] = ("config_lock",)
    wait = wait_of(process)
    assert (wait.resource.kind.value, wait.resource.address, wait.resource.name) == ("mutex", DATA, "config_lock")
    assert (wait.owner, wait.certainty) == (Owner(2), Certainty.EXACT)


def test_an_owner_that_is_no_thread_is_gone():
    wait = wait_of(Process({DATA: mutex(owner=99)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)))
    assert wait.owner == Owner(99, gone=True)


@pytest.mark.parametrize("raw", [mutex(owner=0), mutex(owner=-5), mutex(owner=1 << 30)])
def test_an_owner_that_cannot_be_a_tid_is_unknown(raw):
    wait = wait_of(Process({DATA: raw}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)))
    assert (wait.owner, wait.certainty) == (None, Certainty.UNKNOWN)


def test_a_mutex_that_was_just_unlocked():
    process = Process({DATA: mutex(lock=0, owner=2)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2))
    wait = wait_of(process.thread(2, []))
    assert wait.handover
    assert wait.owner is None


def test_a_recursive_mutex_never_blocks_its_owner():
    wait = wait_of(Process({DATA: mutex(owner=1, kind=1)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)))
    assert wait.owner is None
    plain = wait_of(Process({DATA: mutex(owner=1)}).thread(1, MUTEX_STACK, args=(DATA, PRIVATE, 2)))
    assert plain.owner == Owner(1)


def test_robust_and_priority_inheriting_mutexes_keep_the_owner_in_the_lock_word():
    robust = Process({DATA: mutex(lock=0x80000002, kind=16)}).thread(1, MUTEX_STACK, args=(DATA, 0, 0x80000002))
    assert wait_of(robust.thread(2, [])).owner == Owner(2)
    inheriting = Process({DATA: mutex(lock=0x80000002, kind=32)}).thread(1, MUTEX_STACK, args=(DATA, 6 | PRIVATE, 0))
    assert wait_of(inheriting.thread(2, [])).owner == Owner(2)


def test_tids_of_another_pid_namespace_are_translated():
    """The process calls its threads 7 and 8, the debugger calls them 1007 and 1008."""
    process = Process({DATA: mutex(owner=8)}).thread(1007, MUTEX_STACK, args=(DATA, PRIVATE, 2)).thread(1008, [])
    for outer, inner in ((1007, 7), (1008, 8)):
        process.target.regions[TLS + outer * 0x1000] = pages(bytes(0x2D0) + struct.pack("<I", inner))
    assert wait_of(process).owner == Owner(1008)


def test_a_lock_inside_malloc_has_no_owner():
    frames = [("libc.so.6", "__lll_lock_wait_private"), ("libc.so.6", "malloc"), ("app.so", "work")]
    wait = wait_of(Process({DATA: b"\x02" + bytes(63)}).thread(1, frames, args=(DATA, PRIVATE, 2)))
    assert (wait.resource.kind.value, wait.resource.name, wait.owner) == ("libc-lock", "malloc arena", None)


def test_the_loader_lock_is_a_mutex_with_an_owner():
    frames = [("libc.so.6", None), ("libc.so.6", "pthread_mutex_lock"), ("libc.so.6", "dl_iterate_phdr"),
              ("app.so", "work")]  # fmt: skip
    process = Process({DATA: mutex(owner=2, kind=1)}).thread(1, frames, args=(DATA, PRIVATE, 2)).thread(2, [])
    assert (wait_of(process).resource.kind.value, wait_of(process).owner) == ("loader-lock", Owner(2))


@pytest.mark.parametrize(("offset", "held"), [(40, DATA), (44, DATA), (32, DATA), (36, DATA)])
def test_a_condition_variable_found_in_the_waiters_frames(offset, held):
    frames = [("libc.so.6", None), ("libc.so.6", "pthread_cond_wait"), ("app.so", "work")]
    process = Process({DATA: bytes(64)}).thread(1, frames, args=(DATA + offset, BITSET, 0), registers={"rbx": held})
    wait = wait_of(process)
    assert (wait.resource.kind.value, wait.resource.address, wait.timed) == ("condvar", DATA, False)


def test_a_condition_variable_names_its_mutex_when_there_is_one_candidate():
    frames = [("libc.so.6", None), ("libc.so.6", "pthread_cond_wait"), ("app.so", "work")]
    objects = {DATA: bytes(64), 0x40000: mutex(lock=0, users=1)}
    process = Process(objects).thread(1, frames, args=(DATA + 40, BITSET, 0), registers={"rbx": DATA, "r12": 0x40000})
    companion = wait_of(process).companion
    assert companion is not None
    assert companion.address == 0x40000


def test_a_rwlock_with_a_writer():
    raw = struct.pack("<IIIIIIiI", 2, 0, 1, 2, 0, 0, 2, 0) + bytes(24)
    frames = [("libc.so.6", "pthread_rwlock_rdlock"), ("app.so", "work")]
    process = Process({DATA: raw}).thread(1, frames, args=(DATA + 8, PRIVATE, 3), registers={"rbx": DATA})
    wait = wait_of(process.thread(2, []))
    assert (wait.resource.kind.value, wait.resource.address, wait.owner) == ("rwlock", DATA, Owner(2))


def test_readers_of_a_rwlock_are_inferred_only_when_their_number_fits():
    raw = struct.pack("<IIIIIIiI", 2 << 3, 1, 0, 1, 0, 0, 0, 0) + bytes(24)
    frames = [("libc.so.6", "pthread_rwlock_wrlock"), ("app.so", "work")]
    reads = [("app.so", "reads"), ("app.so", "main")]
    process = Process({DATA: raw}).thread(1, frames, args=(DATA + 12, PRIVATE, 1), registers={"rbx": DATA})
    process.thread(2, reads, registers={"rbx": DATA})
    assert wait_of(process).owners == ()
    process.thread(3, reads, registers={"r12": DATA})
    assert (wait_of(process).owners, wait_of(process).certainty) == ((Owner(2), Owner(3)), Certainty.INFERRED)


def test_a_semaphore_without_any_name():
    frames = [("libc.so.6", None), ("libc.so.6", None), ("app.so", "work")]
    process = Process({DATA: struct.pack("<IIII", 0, 1, 0, 0)}).thread(1, frames, args=(DATA, BITSET, 0))
    assert wait_of(process).resource.kind.value == "semaphore"
    other = Process({DATA: struct.pack("<IIII", 0, 0, 0, 0)}).thread(1, frames, args=(DATA, BITSET, 0))
    assert wait_of(other).resource.kind.value == "futex"


def test_a_join_is_proven_by_the_address_of_the_tid():
    frames = [("libc.so.6", None), ("app.so", "work")]
    tid_word = TLS + 2 * 0x1000 + 0x2D0
    process = Process().thread(1, frames, args=(tid_word, 265, 2)).thread(2, [])
    wait = wait_of(process)
    assert (wait.resource.kind.value, wait.owner, wait.certainty) == ("join", Owner(2), Certainty.EXACT)


def test_a_barrier_says_how_many_have_arrived():
    raw = struct.pack("<IIIII", 3, 0, 4, 0, 0)
    process = Process({DATA: raw}).thread(1, [("libc.so.6", "pthread_barrier_wait")], args=(DATA + 4, PRIVATE, 0))
    assert wait_of(process).resource.name == "3 of 4 threads have arrived"


def test_an_unknown_futex_is_said_to_be_unknown():
    wait = wait_of(Process({DATA: bytes(64)}).thread(1, [("app.so", "spin_lock")], args=(DATA, 0, 7)))
    assert (wait.resource.kind.value, wait.certainty) == ("futex", Certainty.UNKNOWN)


# --- static initialisers -------------------------------------------------------------------------

GUARD = [("libc.so.6", "syscall"), ("app.so", "__cxa_guard_acquire"), ("app.so", "_Z4workv")]


def test_a_static_is_initialised_by_the_thread_inside_its_function():
    process = Process({DATA: struct.pack("<II", 0x10100, 0)}).thread(1, GUARD, args=(DATA, 0, 0x10100))
    process.thread(2, [("libc.so.6", "pause"), ("app.so", "_Z4workv"), ("app.so", "main")])
    process.symbols[DATA] = ("_ZGVZ4workvE5value",)
    wait = wait_of(process)
    assert (wait.resource.kind.value, wait.resource.name) == ("static-init", "work()::value")
    assert (wait.owner, wait.certainty) == (Owner(2), Certainty.INFERRED)


def test_two_candidates_are_no_owner():
    process = Process({DATA: struct.pack("<II", 0x10100, 0)}).thread(1, GUARD, args=(DATA, 0, 0x10100))
    for tid in (2, 3):
        process.thread(tid, [("libc.so.6", "pause"), ("app.so", "_Z4workv")])
    assert (wait_of(process).owner, wait_of(process).certainty) == (None, Certainty.UNKNOWN)


def test_another_waiter_for_the_guard_does_not_own_it():
    process = Process({DATA: struct.pack("<II", 0x10100, 0)}).thread(1, GUARD, args=(DATA, 0, 0x10100))
    process.thread(2, GUARD, args=(DATA, 0, 0x10100))
    assert wait_of(process).owner is None


# --- the GIL -------------------------------------------------------------------------------------


def gil(**changes):
    values = {"address": DATA, "interpreter": 0, "interpreters": (0,), "locked": True, "holder": 0xAA, "holder_tid": 2,
              "last_holder": 0xAA, "mutex_owner": None, "interval": 5000, "cond_range": (DATA, DATA + 48),
              "mutex_range": (DATA + 48, DATA + 88), "switch_cond_range": (DATA + 88, DATA + 136),
              "switch_mutex_range": (DATA + 136, DATA + 176)}  # fmt: skip
    return GilState(**{**values, **changes})


class Python:
    def __init__(self, *gils, wait=None, inside=()):
        self._gils, self._wait, self._inside = gils, wait, inside

    def gils(self):
        return self._gils

    def wait(self, _tid, _semaphore):
        return self._wait

    def inside_with(self, _semaphore):
        return self._inside

    def tid_of_state(self, address):
        return {0xAA: 2}.get(address)


GIL_STACK = [("libc.so.6", None), ("libc.so.6", "pthread_cond_timedwait"), ("libpython3.11.so.1.0", None),
             ("libpython3.11.so.1.0", "PyEval_RestoreThread")]  # fmt: skip


def wants_gil():
    return Process({DATA: bytes(256)}).thread(1, GIL_STACK, args=(DATA + 40, BITSET, 0, STACK)).thread(2, [])


def test_a_gil_waiter_by_the_condvars_address():
    wait = wait_of(wants_gil(), python=Python(gil()))
    assert (wait.resource.kind.value, wait.owner, wait.certainty) == ("gil", Owner(2), Certainty.EXACT)


def test_the_gil_is_free_or_handed_over():
    for state in (gil(locked=False, holder=None, holder_tid=None), gil(holder=None, holder_tid=None, mutex_owner=2)):
        wait = wait_of(wants_gil(), python=Python(state))
        assert wait.handover
        assert wait.owner is None


def test_a_waiter_that_has_the_gils_mutex_for_a_moment_hides_no_holder():
    wait = wait_of(wants_gil().thread(3, []), python=Python(gil(holder=None, holder_tid=None, mutex_owner=3)))
    assert (wait.owner, wait.certainty) == (Owner(2), Certainty.INFERRED)


def test_a_waiter_between_two_timed_waits():
    process = Process({DATA: bytes(256)}).thread(1, GIL_STACK, call=(1 << 64) - 1, rax=0)
    process.thread(2, [], call=(1 << 64) - 1, rax=0)
    assert wait_of(process, python=Python(gil())).owner == Owner(2)
    holder = process.look(2, Python(gil()))
    assert state_of(holder).state is RunState.RUNNING


def test_another_futex_below_restore_thread_is_not_the_gil():
    process = Process({DATA: bytes(256), 0x40000: bytes(64)}).thread(1, GIL_STACK, args=(0x40000 + 40, BITSET, 0))
    assert wait_of(process.thread(2, []), python=Python(gil())).resource.kind.value == "condvar"


# --- Python locks --------------------------------------------------------------------------------

LOCK_STACK = [("libc.so.6", None), ("libc.so.6", None), ("libpython3.11.so.1.0", "PyThread_acquire_lock_timed"), LOOP]
FRAME = Frame(3, FrameKind.PYTHON, "wait", file="/lib/threading.py", line=1)


def python_wait(kind, **more):
    return PythonWait(Waitable(kind), 0x9000, FRAME, **more)


def waits_for_lock(value=0):
    return Process({DATA: struct.pack("<IIII", value, 1, 0, 0)}).thread(1, LOCK_STACK, args=(DATA, BITSET, 0))


@pytest.mark.parametrize(("kind", "expected"), [
    ("condition", "condvar"), ("event", "condvar"), ("queue", "queue"), ("simplequeue", "queue"), ("future", "condvar"),
    ("semaphore", "semaphore"), ("barrier", "barrier"), ("lock", "python-lock"), ("rlock", "python-lock"),
    ("thread", "join"), ("shutdown", "join"),
])  # fmt: skip
def test_python_objects_name_the_wait(kind, expected):
    assert wait_of(waits_for_lock(), python=Python(wait=python_wait(kind))).resource.kind.value == expected


def test_every_waitable_has_a_meaning():
    assert set(python_waits._MEANINGS) == set(Waitable)


def test_an_rlock_records_its_owner():
    process = waits_for_lock().thread(2, [])
    wait = wait_of(process, python=Python(wait=python_wait("rlock", owner_ident=0xBEEF, owner_tid=2)))
    assert (wait.owner, wait.certainty) == (Owner(2), Certainty.EXACT)
    ended = wait_of(process, python=Python(wait=python_wait("rlock", owner_ident=0xBEEF)))
    assert ended.owner == Owner(0xBEEF, gone=True)


def test_a_plain_lock_is_held_by_who_is_inside_its_with():
    process = waits_for_lock().thread(2, []).thread(3, LOCK_STACK, args=(DATA, BITSET, 0))
    python = Python(wait=python_wait("lock"), inside=(2, 3))
    assert (wait_of(process, python=python).owner, wait_of(process, python=python).certainty) == (
        Owner(2),
        Certainty.INFERRED,
    )
    assert wait_of(process, python=Python(wait=python_wait("lock"))).owner is None
    alone = Python(wait=python_wait("lock"), inside=(1,))
    assert wait_of(waits_for_lock(), python=alone).owner == Owner(1)


def test_a_lock_that_is_free_again():
    assert wait_of(waits_for_lock(value=1), python=Python(wait=python_wait("lock"))).handover


# --- pools ---------------------------------------------------------------------------------------

WORKER = [("libgomp.so.1", None), ("libgomp.so.1", None), ("libc.so.6", None), ("libc.so.6", None)]
MASTER = [("libgomp.so.1", None), ("libgomp.so.1", None), ("libtorch_cpu.so", "kernel"), LOOP]
ATWORK = [("libtorch_cpu.so", "kernel"), ("libgomp.so.1", None), ("libc.so.6", None), ("libc.so.6", None)]


def gomp_barrier(total, awaited=1):
    return struct.pack("<II", total, 0) + bytes(56) + struct.pack("<I", awaited) + bytes(60)


def team(*workers, total=2):
    process = Process({DATA: gomp_barrier(total)}).thread(1, MASTER, args=(DATA + 4, PRIVATE, 0))
    for number, frames in enumerate(workers):
        process.thread(2 + number, frames, args=(DATA + 4, PRIVATE, 0))
    return process


def test_an_openmp_worker_that_waits_or_spins_for_work_is_idle():
    process = team(WORKER)
    assert state_of(process.look(2)).pool is Pool.OPENMP
    process.thread(3, WORKER, call=(1 << 64) - 1, rax=0)
    assert state_of(process.look(3)).state is RunState.IDLE


def test_a_team_without_workers_after_fork():
    assert wait_of(team()).missing == MissingWorkers(Pool.OPENMP)
    assert wait_of(team(WORKER, total=4)).missing == MissingWorkers(Pool.OPENMP, present=1)


def test_the_master_waits_for_workers_that_are_at_work():
    process = team(total=3).thread(2, ATWORK, call=(1 << 64) - 1, rax=0).thread(3, WORKER, args=(DATA + 4, PRIVATE, 0))
    wait = wait_of(process)
    assert (wait.owners, wait.certainty, wait.missing) == ((Owner(2),), Certainty.INFERRED, None)


def test_nobody_is_late():
    assert wait_of(team(WORKER)).handover


def test_an_openmp_lock_is_told_by_its_word():
    wait = wait_of(Process({DATA: b"\xff" * 4}).thread(1, MASTER, args=(DATA, PRIVATE, 0xFFFFFFFF)))
    assert (wait.resource.kind.value, wait.missing) == ("mutex", None)


def test_no_workers_are_missed_where_no_barrier_is():
    wait = wait_of(Process({DATA: gomp_barrier(0, awaited=0)}).thread(1, MASTER, args=(DATA + 4, PRIVATE, 0)))
    assert wait.missing is None


def test_a_worker_in_an_openmp_lock_is_late():
    inside = [("libgomp.so.1", None), *ATWORK]
    process = team(total=3).thread(2, inside, args=(DATA + 0x800, PRIVATE, 0xFFFFFFFF)).thread(3, WORKER)
    assert wait_of(process).owners == (Owner(2),)


def test_more_threads_than_a_barrier_waits_for():
    process = team(total=3)
    for tid in (2, 3):
        process.thread(tid, ATWORK, call=(1 << 64) - 1, rax=0)
    wait = wait_of(process)
    assert not wait.owners
    assert not wait.handover


POP = "_ZN5torch8autograd10ReadyQueue3popEv"
MAIN = "_ZN5torch8autograd6Engine11thread_mainERKSt10shared_ptrINS0_9GraphTaskEE"
INIT = "_ZN5torch8autograd6Engine11thread_initEiRKSt10shared_ptrINS0_10ReadyQueueEEb"
EVALUATE = "_ZN5torch8autograd6Engine17evaluate_functionERSt10shared_ptr"
EXECUTE = "_ZN5torch8autograd6Engine7executeERKSt6vector"
COND = [("libc.so.6", None), ("libc.so.6", "pthread_cond_wait")]


def torch_frames(*names):
    return [*COND, *(("libtorch_cpu.so", name) for name in names)]


def test_autograd_workers_idle_and_at_work():
    process = Process({DATA: bytes(64)}).thread(1, torch_frames(POP, MAIN, INIT), args=(DATA + 40, BITSET, 0))
    process.thread(2, torch_frames(EVALUATE, MAIN, INIT), args=(DATA + 40, BITSET, 0))
    process.thread(3, [*torch_frames(EXECUTE), LOOP], args=(DATA + 40, BITSET, 0))
    assert state_of(process.look(1)).pool is Pool.AUTOGRAD
    assert state_of(process.look(2)).state is RunState.WAITING
    wait = wait_of(process, 3)
    assert (wait.resource.kind.value, wait.owners, wait.certainty) == ("queue", (Owner(2),), Certainty.INFERRED)


def test_backward_without_engine_threads():
    process = Process({DATA: bytes(64)}).thread(3, [*torch_frames(EXECUTE), LOOP], args=(DATA + 40, BITSET, 0))
    assert wait_of(process).missing == MissingWorkers(Pool.AUTOGRAD)


def test_a_python_hook_inside_backward_is_its_own_wait():
    frames = [*LOCK_STACK, ("libtorch_cpu.so", EXECUTE), LOOP]
    process = Process({DATA: struct.pack("<IIII", 0, 1, 0, 0)}).thread(1, frames, args=(DATA, BITSET, 0))
    assert wait_of(process, python=Python(wait=python_wait("event"))).resource.kind.value == "condvar"


def test_collectives_but_not_the_event_loop_of_gloo():
    receive = "_ZN4gloo9transport3tcp13UnboundBuffer8waitRecvEPiNSt6chrono8durationIlSt5ratioILl1ELl1000EEEE"
    loop = "_ZN4gloo9transport3tcp4Loop3runEv"
    process = Process({DATA: bytes(64)}).thread(1, torch_frames(receive), args=(DATA + 40, BITSET, 0, STACK))
    process.thread(2, [("libc.so.6", "epoll_wait"), ("libtorch_cpu.so", loop)], call=232, args=(4, STACK, 1, 10))
    assert wait_of(process).resource.kind.value == "collective"
    assert state_of(process.look(2)).pool is Pool.GLOO_LOOP


def test_a_device_synchronisation_may_spin():
    process = Process().thread(1, [("app.so", "cudaStreamSynchronize"), LOOP], call=(1 << 64) - 1, rax=0)
    assert wait_of(process).resource.kind.value == "device"


# --- the outside ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("call", "args", "kind", "name"), [
    (0, (5,), "io", "read on fd 5"),
    (7, (DATA, 1, 0xFFFFFFFF), "io", "poll on fd 9"),
    (35, (DATA + 16,), "sleep", "sleeps (2.5 s)"),
    (61, (1234,), "child-process", "child process 1234"),
    (61, (0xFFFFFFFF,), "child-process", "any child process"),
    (34, (), "sleep", "waits for a signal (pause)"),
    (232, (4, 0, 1, 0xFFFFFFFF), "io", "epoll_wait on fd 4"),
])  # fmt: skip
def test_what_the_system_ends(call, args, kind, name):
    raw = struct.pack("<iHH", 9, 1, 0) + bytes(8) + struct.pack("<QQ", 2, 500_000_000)
    wait = wait_of(Process({DATA: raw}).thread(1, [("libc.so.6", "call"), ("app.so", "work")], call=call, args=args))
    assert (wait.resource.kind.value, wait.resource.name) == (kind, name)


def test_the_prompt_is_idle_and_so_is_standard_input():
    frames = [("libc.so.6", "select"), ("libpython3.11.so.1.0", "PyOS_Readline"), LOOP]
    assert state_of(Process().thread(1, frames, call=23, args=(1, 0, 0, 0, 0)).look()).state is RunState.IDLE
    assert state_of(Process().thread(1, [("libc.so.6", "read"), LOOP], call=0, args=(0,)).look()).state is RunState.IDLE


# --- names ---------------------------------------------------------------------------------------


def test_a_name_inside_a_template_argument_is_no_tag():
    assert tags_of([f"_ZSt6invokeIM{POP[2:]}EvE"]) == frozenset()
    assert tags_of([POP]) == {FunctionTag.AUTOGRAD_POP}
    assert tags_of(["_ZN2at4implL12metaFallbackERKN3c1014OperatorHandleE"]) == {FunctionTag.NO_KERNEL}


@pytest.mark.parametrize(("files", "state"), [
    (["/lib/python3.13/_pyrepl/unix_console.py"], "idle"),
    (["/lib/python3.11/selectors.py", "/lib/python3.11/asyncio/base_events.py", "/x/ipykernel/kernelapp.py"], "idle"),
    (["/lib/python3.11/socket.py", "/home/me/cell.py", "/x/ipykernel/kernelapp.py"], "waiting"),
    (["/lib/python3.11/selectors.py", "/lib/python3.11/asyncio/base_events.py", "/home/me/server.py"], "waiting"),
])  # fmt: skip
def test_prompts_written_in_python(files, state):
    python = [Frame(level, FrameKind.PYTHON, "f", file=file) for level, file in enumerate(files)]
    process = Process().thread(1, [("libc.so.6", "read"), LOOP], call=0, args=(3,), python=python)
    assert state_of(process.look()).state.value == state
