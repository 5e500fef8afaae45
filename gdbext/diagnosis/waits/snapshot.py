"""Snapshot of one thread and of its process: the input of the wait recognizers."""

from __future__ import annotations

from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.wait import OwnerCertainty, OwnerThread, VanishedThread, Wait
from gdbext.diagnosis.waits.function_tag import tags_of
from gdbext.diagnosis.waits.named_table import ROWS, NamedWaits
from gdbext.diagnosis.waits.pool_table import POOLS, PoolIndex
from gdbext.engine.formats.demangle import demangle
from gdbext.engine.glibc.pthread import StartedThread, thread_id, threads_left_behind
from gdbext.engine.process.code_reader import RESTARTED, Syscall, blocked_syscall, make_syscall, restarted_call
from gdbext.engine.targets.system.peer import ChildProcess, listed
from gdbext.engine.targets.system.procfs import NO_PROCFS, ProcFs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import Union

    from gdbext.cpython.sync.locks import GilState
    from gdbext.cpython.wait_view import PythonWaitView
    from gdbext.diagnosis.report.thread_report import Frame
    from gdbext.diagnosis.report.wait_kind import Resource
    from gdbext.diagnosis.waits.add_ons import AddOns
    from gdbext.diagnosis.waits.function_tag import FunctionTag
    from gdbext.diagnosis.waits.named_table import NamedWait
    from gdbext.diagnosis.waits.pool_table import PoolFunction
    from gdbext.engine.process.memory import Memory
    from gdbext.engine.process.modules import ModuleTable
    from gdbext.engine.process.symbolizer import Function, Symbolizer
    from gdbext.engine.targets.base_target import KernelSide, Signal
    from gdbext.engine.unwind import NativeStack
    from gdbext.engine.unwind.frame_steps import NativeFrame
    from gdbext.torch.stack import DispatchFrame

    Tag = Union["FunctionTag", "PoolFunction", "NamedWait"]
    """The knowledge that the name of a function gives."""


_C_LIBRARIES = ("libc.", "libc-2", "libpthread", "ld-linux", "linux-vdso", "[vdso]")
RUNTIME_LIBRARIES = (*_C_LIBRARIES, "libstdc++", "libgcc_s", "libc++")
"""Beginnings of the names of libraries that are below all others, of which a program's own code makes use."""
PYTHON_LIBRARIES = ("python", "libpython")
"""Beginnings of the names of the program or library that the interpreter is."""
INNER = 80
"""Innermost frames searched for a wait's purpose: loader callbacks or backward hooks put many frames between."""
OUTER = 8
"""Outermost frames that are searched for a pool's main function."""
MAX_TID = 1 << 22
"""The largest thread id: PID_MAX_LIMIT (include/linux/threads.h)."""


class ProcessSnapshot:
    """The process: memory, symbols, all threads, and the views of Python and of the operating system."""

    def __init__(
        self,
        memory: Memory,
        names: Symbolizer,
        modules: ModuleTable,
        pid: int,
        tids: frozenset[int],
        python: PythonWaitView,
        procfs: ProcFs = NO_PROCFS,
        add_ons: AddOns | None = None,
    ) -> None:
        self.memory = memory
        self.names = names
        self.modules = modules
        self.pid = pid
        self.tids = tids
        self.python = python
        self.procfs = procfs
        self.add_ons = add_ons
        self.threads: list[ThreadSnapshot] = []
        self._tags: dict[int, frozenset[Tag]] = {}  # by the pc of the frame
        self._first_levels: dict[tuple[tuple[int, ...], range], dict[Tag, int]] = {}

    @cached_property
    def pools(self) -> PoolIndex:
        """All kinds of pools; ours come before those of other packages."""
        return PoolIndex((*POOLS, *(self.add_ons.pools if self.add_ons is not None else ())))

    @cached_property
    def named_waits(self) -> NamedWaits:
        """All functions that say what a thread in them waits for; those of other packages come first."""
        return NamedWaits((*(self.add_ons.named_waits if self.add_ons is not None else ()), *ROWS))

    @property
    def added_recognizers(self) -> Sequence[Callable[[ThreadSnapshot], Wait | None]]:
        return self.add_ons.recognizers if self.add_ons is not None else ()

    def tags(self, frame: NativeFrame, function: Callable[[], Function | None]) -> frozenset[Tag]:
        """The tags of a frame's function; looked up once for each code address."""
        tags = self._tags.get(frame.lookup_pc)
        if tags is None:
            symbol = function()
            names = symbol.names if symbol else ()
            added = self.pools.functions_of(names) | self.named_waits.rows_of(names)
            tags = self._tags[frame.lookup_pc] = tags_of(names) | added
        return tags

    def first_levels(self, stack: NativeStack, levels: range) -> Mapping[Tag, int]:
        """Tag → the first of these levels of the stack whose function has it. Cached for equal stacks."""
        level_of_tag = self._first_levels.get((stack.path, levels))
        if level_of_tag is None:
            level_of_tag = self._first_levels[stack.path, levels] = {}
            for level in levels:
                for tag in self.tags(stack.frames[level], partial(stack.function, level)):
                    level_of_tag.setdefault(tag, level)
        return level_of_tag

    @cached_property
    def _thread_by_tid(self) -> dict[int, ThreadSnapshot]:
        return {thread.tid: thread for thread in self.threads}

    def thread(self, tid: int) -> ThreadSnapshot | None:
        return self._thread_by_tid.get(tid)

    @cached_property
    def fork_evidence(self) -> tuple[str, ...]:
        """Facts that show a fork without exec, the best first; () if nothing does. After a fork threads are missing
        while their locks stay; a missing thread alone proves no fork."""
        facts = []
        parent = self.procfs.forked_from()
        if parent is not None:
            facts.append(
                f"its code, stack and heap are at the same addresses as in its parent process {parent}, which forked it"
            )
        main = self.thread(self.pid)  # the only thread that a fork leaves, under another id
        native = self.python.native_id(self.pid)
        if main and native is not None and main.own_tid not in (None, native):
            facts.append(f"threading recorded thread {main.tid} as the kernel's thread {native}, before a fork")
        # Popen._launch and main of these files call os.fork(): their frames are at the bottom of a child's stack.
        forking_files = ("/multiprocessing/popen_fork.py", "/multiprocessing/forkserver.py")
        for thread in self.threads:
            if any(frame.file.endswith(forking_files) for frame in thread.python):
                facts.append("multiprocessing's call of fork is on its stack")
        return tuple(facts)

    @cached_property
    def started_in_parent(self) -> tuple[StartedThread, ...]:
        """The threads that a fork left behind in the parent process, as far as their stacks are still mapped; () unless
        this process was forked."""
        found = threads_left_behind(self.memory, self.modules.mappings) if self.fork_evidence else ()
        return tuple(found)

    @cached_property
    def sleepers(self) -> Mapping[int, set[int]]:
        """Address of a futex → ids of the threads that sleep on it."""
        tids: dict[int, set[int]] = {}
        for thread in self.threads:
            if thread.futex:
                tids.setdefault(thread.futex.address, set()).add(thread.tid)
        return tids

    def processes(self, pids: Iterable[int]) -> tuple[ChildProcess, ...]:
        """The processes with these ids; of one that is no child only the pid is known."""
        children = self.procfs.children()
        return tuple(children.get(pid, ChildProcess(pid)) for pid in pids)

    def owner(self, tid: int) -> OwnerThread | VanishedThread | None:
        """The owner that a lock records (``tid`` in the process's own PID namespace); None if it is unknown."""
        if not 0 < tid <= MAX_TID:
            return None
        outer, complete = self._outer_tids
        if tid in outer:
            return OwnerThread(outer[tid])
        # A tid of ours that no thread has as its own id: what the threads say is damaged.
        return VanishedThread(tid) if complete and tid not in self.tids else None

    def owner_certainty(self, owner: OwnerThread | VanishedThread | None) -> OwnerCertainty:
        """The certainty of an owner that one word of a lock records. A vanished thread is RECORDED only if its id is
        near those of the process: the kernel assigns ids in order, and a damaged word is seldom such a number."""
        if not owner or isinstance(owner, OwnerThread):
            return OwnerCertainty.RECORDED if owner else OwnerCertainty.UNKNOWN
        is_near = any(abs(owner.tid - tid) <= 1 << 12 for tid in self._outer_tids[0])
        return OwnerCertainty.RECORDED if is_near else OwnerCertainty.INFERRED

    @cached_property
    def _outer_tids(self) -> tuple[Mapping[int, int], bool]:
        """(tid in the process's own PID namespace → in ours, True if no thread is missing). glibc keeps a thread's own
        id in struct pthread; if one equals ours, or none can be read, both namespaces are taken to be the same."""
        inner = {tid: thread.tid for thread in self.threads if (tid := thread.own_tid) and tid <= MAX_TID}
        if not inner or any(own == outer for own, outer in inner.items()):
            return {tid: tid for tid in self.tids}, True
        return inner, len(inner) == len(self.tids)

    @cached_property
    def frozen_group(self) -> str:
        """The frozen cgroup of the process, "?" if unnamed, "" for none; read only if a state hints at it."""
        sides = [thread.kernel_side for thread in self.threads if thread.kernel_side]
        if not self.procfs or not any(side.is_uninterruptible or side.is_frozen for side in sides):
            return ""
        return self.procfs.machine.frozen_group() or ("?" if any(side.is_frozen for side in sides) else "")

    @cached_property
    def gils(self) -> Sequence[GilState]:
        """All GILs of the process; empty without Python or where they cannot be read."""
        return self.python.gils

    def name_at(self, address: int) -> str:
        """The demangled name of the object at an address, "" where no symbol starts there."""
        names = self.names.names_at(address)
        return demangle(names[0]) if names else ""


class ThreadSnapshot:
    """One thread: everything that was read of it. Frames are innermost first.

    ``kernel_state``: the letter in /proc/PID/task/TID/stat before the debugger stopped it, None if unknown. ``python``:
    each frame at the ``level`` of the native frame that evaluates it. ``unseen_dispatch``: why ``dispatch`` may lack
    frames, None if complete. ``number``: the debugger's. ``signal``: the fatal one that stopped it. ``notes``: what was
    unreadable. ``kernel_side``: the kernel's view of an unexplained sleep. ``stop_signal``: of the process, 0 if none.
    """

    def __init__(
        self,
        process: ProcessSnapshot,
        tid: int,
        registers: Mapping[str, int],
        stack: NativeStack,
        kernel_state: str | None = None,
        python: Sequence[Frame] = (),
        dispatch: Sequence[DispatchFrame] = (),
        unseen_dispatch: str | None = None,
        name: str | None = None,
        python_name: str | None = None,
        number: int | None = None,
        signal: Signal | None = None,
        notes: Sequence[str] = (),
        kernel_side: KernelSide | None = None,
        stop_signal: int = 0,
    ) -> None:
        self.process = process
        self.tid = tid
        self.registers = registers
        self.stack = stack
        self.kernel_state = kernel_state
        self.python = python
        self.dispatch = dispatch
        self.unseen_dispatch = unseen_dispatch
        self.name = name
        self.python_name = python_name
        self.number = number
        self.signal = signal
        self.notes = notes
        self.kernel_side = kernel_side
        self.stop_signal = stop_signal

    def without_procfs(self) -> ThreadSnapshot:
        """A copy of this thread without procfs, as if only its memory were known."""
        thread, thread.process = object.__new__(ThreadSnapshot), object.__new__(ProcessSnapshot)
        vars(thread.process).update(vars(self.process), procfs=NO_PROCFS)
        vars(thread).update(vars(self), process=thread.process)
        return thread

    @cached_property
    def syscall(self) -> Syscall | None:
        """The system call the thread is blocked in, None when it runs."""
        call = blocked_syscall(self.registers, self.process.memory)
        side = self.kernel_side
        if not call and side and side.call >= 0:
            return make_syscall(self.process.memory, side.call, side.arguments)  # from procfs: code may be unreadable
        if not call or call.name != RESTARTED or len(self.frames) < 2:
            return call
        return restarted_call(call, self.process.memory, self.frames[1].cfa)

    @cached_property
    def futex(self) -> FutexWait | None:
        """Its futex wait on a word that can belong to an object; None for any other wait."""
        wait = any_futex_wait(self.syscall)
        return wait if wait and wait.address >= 4096 else None  # vm.mmap_min_addr is at least a page

    @property
    def thread_pointer(self) -> int:
        """The address of the thread's control block, 0 if unknown."""
        return self.process.memory.architecture.thread_pointer(self.registers)

    @cached_property
    def own_tid(self) -> int | None:
        """The thread's id as glibc keeps it, None if unreadable."""
        return thread_id(self.process.memory, self.thread_pointer)

    @property
    def frames(self) -> list[NativeFrame]:
        return self.stack.frames

    def tags(self, level: int) -> frozenset[Tag]:
        return self.process.tags(self.frames[level], lambda: self.stack.function(level))

    @cached_property
    def inner_tags(self) -> Mapping[Tag, int]:
        """Tag → the innermost level that has it, over the inner frames."""
        return self.process.first_levels(self.stack, range(min(len(self.frames), INNER)))

    @cached_property
    def outer_tags(self) -> Mapping[Tag, int]:
        outermost = len(self.frames) - 1
        return self.process.first_levels(self.stack, range(outermost, max(outermost - OUTER, -1), -1))

    def level_of(self, *tags: FunctionTag, within: int = INNER) -> int | None:
        """The innermost level below ``within`` whose function has one of the tags, None if there is none."""
        levels = (self.inner_tags[tag] for tag in tags if tag in self.inner_tags)
        return min((level for level in levels if level < within), default=None)

    def module_name(self, level: int) -> str:
        module = self.frames[level].module if level < len(self.frames) else None
        return module.name if module else ""

    def function_name(self, level: int) -> str:
        """The function of a frame without its arguments, "" if it has no name."""
        function = self.stack.function(level)
        return function.demangled[0].split("(")[0] if function else ""

    def in_libc(self, level: int) -> bool:
        """True if the frame is in the C library or, before glibc 2.34, in its thread library."""
        return self.module_name(level).startswith(("libc.so", "libc-2", "libpthread"))

    @cached_property
    def inner_libc_levels(self) -> Sequence[int]:
        """Levels of the innermost frames that are in libc, up to the first one that is not."""
        inner = range(min(len(self.frames), INNER))
        return range(next((level for level in inner if not self.in_libc(level)), len(inner)))

    def is_shared(self, address: int) -> bool:
        """True if the address is in memory that other processes may map; in a core only a path shows that."""
        mapping = self.process.modules.mapping_at(address)
        shared_files = ("/dev/shm/", "/memfd:", "/dev/zero", "/SYSV")
        return mapping is None or mapping.permissions.endswith("s") or mapping.path.startswith(shared_files)

    def mentions(self, address: int, levels: Iterable[int]) -> bool:
        """True if the address is in a register or a stack word of one of these frames."""
        return any(address in self.values(level) for level in levels if 0 <= level < len(self.frames))

    def has_pointer_to(self, word: int) -> bool:
        """True if a callee-saved register or a stack word of the 8 innermost frames points to ``word``, or less than 64
        bytes below it: to an object that contains it."""
        callee_saved = self.process.memory.architecture.callee_saved
        values = [self.frames[0].registers.get(name, 0) for name in callee_saved] if self.frames else []
        stacks = (self._stack_words(level) for level in range(min(len(self.frames), 8)))
        return any(0 <= word - value < 64 for value in chain(values, *stacks))

    def object_around(self, word: int, offsets: Iterable[int], level: int) -> int | None:
        """The address of the object that has ``word`` at one of the offsets: the only candidate to which a frame within
        two of ``level`` has a pointer, None unless there is exactly one."""
        pointers: set[int] = set()
        for near in range(max(level - 2, 0), min(level + 3, len(self.frames))):
            pointers.update(self.values(near))
        objects = [word - offset for offset in offsets if word - offset in pointers and (word - offset) % 8 == 0]
        return objects[0] if len(objects) == 1 else None

    def values(self, level: int) -> Iterator[int]:
        """The registers of frame ``level``, as they were in it, then the words of its part of the stack."""
        yield from self.frames[level].registers.values()
        yield from self._stack_words(level)

    def _stack_words(self, level: int) -> Iterator[int]:
        """At most 64 words of the frame's part of the stack, from its inner end."""
        frame = self.frames[level]
        words = min((frame.cfa - frame.sp) // 8, 64) if frame.cfa > frame.sp else 0  # 64: a large frame's inner end
        raw = self.process.memory.try_read(frame.sp, words * 8)
        yield from (int.from_bytes(raw[at : at + 8], "little") for at in range(0, len(raw), 8))


WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2 = 0, 6, 9, 11, 13  # include/uapi/linux/futex.h
_PRIVATE, _COMMAND = 0x80, 0x7F
"""FUTEX_PRIVATE_FLAG; ~(FUTEX_PRIVATE_FLAG | FUTEX_CLOCK_REALTIME), for the operations in use."""
TID_MASK, WAITERS = 0x3FFFFFFF, 0x80000000


class FutexWait(NamedTuple):
    """A thread inside futex(2): ``address`` of the futex word, the ``value`` that it is expected to have."""

    address: int
    command: int
    value: int
    timed: bool
    shared: bool = False
    """The word may be in shared memory: another process may wake the thread."""

    @property
    def is_pi(self) -> bool:
        """A priority inheritance lock: the kernel keeps the owner's tid in the word."""
        return self.command in (LOCK_PI, LOCK_PI2)

    @property
    def is_lock_word(self) -> bool:
        """The wait of glibc's low-level lock: the word is 2, "locked, with waiters" (lowlevellock.h)."""
        return self.command == WAIT and self.value == 2

    @property
    def is_lock(self) -> bool:
        """The wait for a lock of any kind."""
        return self.is_lock_word or self.is_pi or self.is_robust

    @property
    def is_robust(self) -> bool:
        """The wait for a robust mutex: the word is its owner's tid with FUTEX_WAITERS."""
        return self.command == WAIT and bool(self.value & WAITERS) and bool(self.value & TID_MASK)


def any_futex_wait(call: Syscall | None) -> FutexWait | None:
    """The futex wait of a system call, whatever its address; None for any other call."""
    if not call or call.name != "futex":
        return None
    address, operation, value, timeout = call.arguments[:4]
    command = operation & _COMMAND
    if command not in (WAIT, LOCK_PI, WAIT_BITSET, WAIT_REQUEUE_PI, LOCK_PI2):
        return None
    return FutexWait(address, command, value & 0xFFFFFFFF, timeout != 0, not operation & _PRIVATE)


def wait_for_threads(
    resource: Resource, tids: Iterable[int], certainty: OwnerCertainty, *evidence: str, timed: bool = False
) -> Wait:
    """The wait until each of these threads has acted; they are its owners."""
    owners = tuple(map(OwnerThread, tids))
    if not owners:
        return Wait(resource, timed=timed, evidence=evidence)
    return Wait(resource, owners[0], certainty, timed, evidence, others=owners[1:])


def joined(names: Sequence[str]) -> str:
    """``a, b and c``; "" for none."""
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def process_list(processes: Sequence[ChildProcess]) -> str:
    """``process 7 (producer)``, or ``processes 7 (producer) and 8 (consumer)``."""
    return f"process{'es' if len(processes) > 1 else ''} {listed(processes)}"
