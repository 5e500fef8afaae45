"""Kernel probes that stop the very thread that gets to them, for a debugger that holds the process.

A BPF program notes the thread's registers and sends it a signal that programs ignore unless they ask for it (SIGURG,
else SIGWINCH). A tracer is told of ignored signals, too (sig_ignored, kernel/signal.c), and finds the thread one
instruction behind the probe: the kernel delivers a signal when the probed instruction is done (uprobe_deny_signal,
kernel/events/uprobes.c).

Nothing of the debugger's is in the code. When it is killed, a signal that is under way is ignored, and the probes go
with the process that keeps them (probe_keeper.py). A breakpoint's SIGTRAP ends the process instead: the kernel lets a
traced thread go on with the signal that its tracer has not fetched yet (ptrace_signal, kernel/signal.c).
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.arch import Architecture
from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.live.proc_checks import living_threads, status_fields
from gdbext.engine.targets.system.linux import signals_held, signals_in
from gdbext.errors import ProbesRefused, TargetError
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.bpf_kernel import HASH, Bpf, ProbePlace, refused
from gdbext.tools.probes.bpf.probe_keeper import INTERRUPTS, ProbeKeeper

if TYPE_CHECKING:
    from gdbext.live.host import HookSpec

_SIGNALS = (signal.SIGURG, signal.SIGWINCH)
"""Signals whose default is to be ignored (signal(7)). SIGCHLD is one, too, and has handlers more often."""
_INITIAL_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO (include/linux/proc_ns.h): there the thread ids of the kernel's programs are ours."""
_HELP = "--engine breakpoints does without"
_WORD = (1 << 64) - 1
_LONGEST_INSTRUCTION = 16
_MAX_THREADS, _MAX_HOOKS = 1 << 15, 1 << 14
_KEY, _NUMBER = -8, -16
"""Places on the program's stack, from its end; the value that is put into the map stands below them."""


class ProbeHit(NamedTuple):
    """A thread got to a probe: the ``number`` that it was added with, the registers there."""

    number: int
    registers: Mapping[str, int]


class ThreadStopper:
    """The probes of one process, until close() or the end of this process."""

    def __init__(self, architecture: Architecture, pid: int) -> None:
        """Load the program. Raises ProbesRefused."""
        self._architecture = architecture
        self._pid = pid
        self.signal = harmless_signal(pid)
        """The signal by which a thread stops."""
        self._keeper: ProbeKeeper | None = None
        self._added: dict[str, list[ProbePlace]] = {}
        self._unarmed: set[int] = set()
        self._descriptors: list[int] = []
        self._kernel = kernel = Bpf.of(architecture)
        probing = architecture.probing
        assert probing  # Bpf.of has refused
        self._registers = sorted(probing.saved, key=lambda name: probing.saved[name])
        self._size = 8 * (1 + len(self._registers))
        try:
            self._hits = self._own(kernel.memory(HASH, 8, self._size, _MAX_THREADS))
            self._wanted = self._own(kernel.memory(HASH, 8, 8, _MAX_HOOKS))
            self._program = self._own(kernel.program(self._code(probing.saved)))
        except BaseException:
            self.close()
            raise

    def _own(self, descriptor: int) -> int:
        self._descriptors.append(descriptor)
        return descriptor

    def _code(self, saved: Mapping[str, int]) -> bytes:
        """Note the registers of a thread at a probe that is wanted, and send it the signal."""
        at = _NUMBER - self._size
        stores = [
            (bpf.load(bpf.B1, bpf.B6, saved[name]), bpf.store(bpf.FRAME, at + 8 * number, bpf.B1))
            for number, name in enumerate(self._registers, start=1)
        ]
        return bpf.assemble(
            (
                bpf.move(bpf.B6, bpf.B1),
                bpf.call(bpf.ATTACH_COOKIE),
                bpf.store(bpf.FRAME, _NUMBER, bpf.B0),
                bpf.store(bpf.FRAME, at, bpf.B0),
                *bpf.look_up(self._wanted, _NUMBER),
                bpf.jump_if_equal("end", bpf.B0, 0),
                bpf.call(bpf.CURRENT_PID_TGID),
                bpf.low_word(bpf.B0),
                bpf.store(bpf.FRAME, _KEY, bpf.B0),
                *(part for pair in stores for part in pair),
                *bpf.put(self._hits, _KEY, at),
                bpf.jump_unless_equal("end", bpf.B0, 0),
                bpf.constant(bpf.B1, self.signal),
                bpf.call(bpf.SEND_SIGNAL_THREAD),
                bpf.Label("end"),
                bpf.end(),
            )
        )

    def add(self, number: int, path: str, offset: int) -> None:
        """Stop at that offset of a file from the next place_added() and arm() on."""
        self._added.setdefault(path, []).append(ProbePlace(offset, number))
        self._unarmed.add(number)

    def arm(self) -> None:
        """Switch on what was added. Raises ProbesRefused."""
        while self._unarmed:
            self.want(self._unarmed.pop(), True)

    def place_added(self) -> None:
        """Place what was added, together: the kernel takes 0.1 s to take a link away. Raises ProbesRefused."""
        added, self._added = self._added, {}
        if added and not self._keeper:
            with signals_held(INTERRUPTS):
                self._keeper = ProbeKeeper(self._kernel, self._architecture, self._program, self._pid, added)
        elif self._keeper:
            for path, places in added.items():
                self._keeper.add(path, places)

    def want(self, number: int, wanted: bool) -> None:
        """Switch a place on or off; one that is off costs the thread a microsecond. Raises ProbesRefused."""
        self._unarmed.discard(number)
        key = struct.pack("<Q", number)
        try:
            if wanted:
                self._kernel.put(self._wanted, key, bytes(8))
            else:
                self._kernel.take(self._wanted, key, 8)
        except OSError as error:
            raise refused("a probe cannot be switched", error) from error

    def waiting(self) -> list[int]:
        """The threads that have got to a probe, and whose hits were not taken. Raises ProbesRefused."""
        try:
            return [int.from_bytes(key.raw, "little") for key in self._kernel.keys(self._hits, 8)]
        except OSError as error:
            raise refused("stops cannot be read", error) from error

    def hit(self, tid: int) -> ProbeHit | None:
        """Take the hit that a thread stopped for; None where it stopped for something else. Raises ProbesRefused."""
        try:
            data = self._kernel.take(self._hits, struct.pack("<Q", tid), self._size)
        except OSError as error:
            raise refused("a stop cannot be read", error) from error
        if data is None:
            return None
        number, *values = struct.unpack(f"<{self._size // 8}Q", data)
        return ProbeHit(number, dict(zip(self._registers, values)))

    def close(self) -> None:
        """Take all probes away; idempotent."""
        if self._keeper:
            self._keeper.close()
        while self._descriptors:
            os.close(self._descriptors.pop())


def harmless_signal(pid: int) -> int:
    """The number of a signal that does nothing to the process, now that it is traced and should its tracer die. Raises
    ProbesRefused without one."""
    if os.readlink("/proc/self/ns/pid") != _INITIAL_NAMESPACE:  # noqa: PTH115
        raise ProbesRefused(
            "probes cannot stop threads from inside of a PID namespace (a container)",
            why="the kernel's programs know a thread by its number outside",
            help=f"run it on the host, or {_HELP}",
        )
    taken = signals_in(status_fields(f"/proc/{pid}/status"), "SigCgt") or 0
    for thread in living_threads(pid):
        taken |= signals_in(status_fields(f"/proc/{pid}/task/{thread}/status"), "SigBlk") or 0
    for number in _SIGNALS:
        if not taken >> number - 1 & 1:
            return int(number)
    raise ProbesRefused(
        "the program handles or blocks both signals by which a probe could stop a thread",
        why="SIGURG and SIGWINCH are those that do nothing to a process by default",
        help=_HELP,
    )


class ProbedHook:
    """An address that is watched by a probe."""

    def __init__(self, owner: ProbeHooks, number: int, spec: HookSpec) -> None:
        self._owner = owner
        self._number = number
        self.spec = spec

    def remove(self) -> None:
        """Nobody stops there any more; the probe is taken away with all others. Raises ProbesRefused."""
        self._owner.drop(self._number)


class ProbeHooks:
    """The hooks of one command, in a process that a debugger holds."""

    def __init__(self, open_target: Callable[[], Target], read: Callable[[int, int], bytes]) -> None:
        """Probe the process of the target, which is opened anew when libraries have come; ``read`` reads its memory.
        Raises ProbesRefused, TargetError."""
        self._open = open_target
        self._target = target = open_target()
        self._read = read
        self._stopper = ThreadStopper(target.architecture, target.pid)
        self._hooks: dict[int, ProbedHook] = {}
        self._given = 0
        self._hit: ProbeHit | None = None

        self.stack_pointer = target.architecture.stack_pointer
        """The name of that register."""

    @property
    def signal(self) -> int:
        """The signal by which threads stop."""
        return self._stopper.signal

    def place(self, spec: HookSpec) -> ProbedHook:
        """Watch an address in all threads, from the next begin() on or the end of the handler that is running. Raises
        ProbesRefused, TargetError."""
        if self.is_spent:
            self._stopper, self._given = ThreadStopper(self._target.architecture, self._target.pid), 0
        number, self._given = self._given, self._given + 1
        self._stopper.add(number, *self._place_of(spec.address))
        hook = self._hooks[number] = ProbedHook(self, number, spec)
        return hook

    def drop(self, number: int) -> None:
        """Forget a hook; all probes are taken away with the last one. Idempotent. Raises ProbesRefused."""
        if not self._hooks.pop(number, None):
            return
        if self.is_spent:
            self.close()
        else:
            self._stopper.want(number, False)

    @property
    def is_spent(self) -> bool:
        """There were hooks, and all were removed, the probes too."""
        return self._given > 0 and not self._hooks

    def _place_of(self, address: int) -> tuple[str, int]:
        found = _in_file(self._target, address)
        if not found:
            self._target = self._open()
            found = _in_file(self._target, address)
        if not found:
            why = "the code there is in no file"
            raise ProbesRefused(f"no probe can be placed at {address:#x}", why=why, help=_HELP)
        return found

    def begin(self, arms: bool = True) -> None:
        """Place the probes: the process is about to run. Nobody stops there before arm(); ``arms``: it is called now.
        Raises ProbesRefused."""
        self._stopper.place_added()
        if arms:
            self.arm()

    def arm(self) -> None:
        """Have threads stop at the probes from now on. Raises ProbesRefused."""
        if not self.is_spent:
            self._stopper.arm()

    def waiting(self) -> list[int]:
        """The threads that stop, or are about to, and were not handled. Raises ProbesRefused."""
        return [] if self.is_spent else self._stopper.waiting()

    def register(self, name: str) -> int | None:
        """A register as it was at the probe, inside a handler; None for one that was not noted."""
        return self._hit.registers.get(name) if self._hit else None

    def check_vectors(self) -> None:
        """Raise TargetError, inside a handler, where the instruction at the probe may have changed a vector
        register."""
        if not self._hit or self._hit.number not in self._hooks:
            return
        address = self._hooks[self._hit.number].spec.address
        if not self._target.architecture.keeps_vectors(self._read(address, _LONGEST_INSTRUCTION)):
            raise TargetError("the thread has done an instruction since, which may have changed vector registers")

    def handle(self, tid: int) -> bool:
        """Call the handler of the probe that the thread has got to, if that is why it stopped. Raises what it
        raises."""
        hit = self._hit = None if self.is_spent else self._stopper.hit(tid)
        if not hit or hit.number not in self._hooks:
            return False
        try:
            spec = self._hooks[hit.number].spec
            cfa = (hit.registers[spec.frame.register] + spec.frame.offset) & _WORD
            value = hit.registers[spec.register] if spec.register else 0
            if spec.load is not None:
                value = int.from_bytes(self._read((value + spec.load) & _WORD, 8), "little")
            over = spec.handler(tid, cfa, value)
            if not self.is_spent:
                self.begin()
            return over
        finally:
            self._hit = None

    def close(self) -> None:
        """Take all probes away; idempotent."""
        self._stopper.close()


def _in_file(target: Target, address: int) -> tuple[str, int] | None:
    """The file that is mapped at an address, and the offset in it."""
    for each in target.memory.maps():
        if each.start <= address < each.end and each.path.startswith("/") and not each.deleted:
            return each.path, address - each.start + each.offset
    return None
