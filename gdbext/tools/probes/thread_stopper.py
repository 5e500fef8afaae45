"""Kernel probes that stop the very thread that gets to them, for a debugger that holds the process.

A BPF program notes the thread's registers and sends it a signal that programs ignore unless they ask for it (SIGURG,
else SIGWINCH). A tracer is told of ignored signals, too (sig_ignored, kernel/signal.c), and finds the thread one
instruction behind the probe: the kernel delivers a signal when the probed instruction is done (uprobe_deny_signal,
kernel/events/uprobes.c).

Nothing of the debugger's is in the code. When it is killed, a signal that is under way is ignored, and the probes are
removed with the process that keeps them (probe_keeper.py). A breakpoint's SIGTRAP ends the process instead: the kernel
resumes a traced thread with the signal that its tracer has not fetched yet (ptrace_signal, kernel/signal.c).
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
from gdbext.engine.targets.system.linux import signals_in
from gdbext.errors import ProbesRefused, TargetError
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.bpf_kernel import HASH, ProbePlace, refused
from gdbext.tools.probes.bpf.place_program import saved_registers
from gdbext.tools.probes.bpf.probe_keeper import ProbeRun

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


class ThreadStopper(ProbeRun):
    """The probes of one process, until close() or the end of this process."""

    def __init__(self, architecture: Architecture, pid: int) -> None:
        """Load the program. Raises ProbesRefused."""
        self.signal = harmless_signal(pid)
        """The signal by which a thread stops."""
        super().__init__(architecture, pid)
        self._added: dict[str, list[ProbePlace]] = {}
        self._unarmed: set[int] = set()
        saved = saved_registers(architecture)
        self._registers = sorted(saved, key=saved.__getitem__)
        self._hit_size = 8 * (1 + len(self._registers))
        try:
            self._hits = self.own(self.kernel.memory(HASH, 8, self._hit_size, _MAX_THREADS))
            self._wanted = self.own(self.kernel.memory(HASH, 8, 8, _MAX_HOOKS))
            self._program = self.own(self.kernel.program(self._code(saved)))
        except BaseException:
            self.close()
            raise

    def _code(self, saved: Mapping[str, int]) -> bytes:
        """Note the registers of a thread at a probe that is wanted, and send it the signal."""
        at = _NUMBER - self._hit_size
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
            self.switch(self._unarmed.pop(), True)

    def place_added(self) -> None:
        """Place what was added, together: the kernel takes 0.1 s to take a link away. Raises ProbesRefused."""
        added, self._added = self._added, {}
        if added and not self.keepers:
            self.attach(self._program, added)
        elif self.keepers:
            for path, places in added.items():
                self.keepers[0].add(path, places)

    def switch(self, number: int, on: bool) -> None:
        """Switch a place on or off; one that is off costs the thread a microsecond. Raises ProbesRefused."""
        self._unarmed.discard(number)
        key = struct.pack("<Q", number)
        try:
            if on:
                self.kernel.put(self._wanted, key, bytes(8))
            else:
                self.kernel.get(self._wanted, key, 8, is_taken=True)
        except OSError as error:
            raise refused("a probe cannot be switched", error) from error

    def waiting(self) -> list[int]:
        """The threads that have got to a probe, and whose hits were not taken. Raises ProbesRefused."""
        try:
            return [int.from_bytes(key.raw, "little") for key in self.kernel.keys(self._hits, 8)]
        except OSError as error:
            raise refused("stops cannot be read", error) from error

    def hit(self, tid: int) -> ProbeHit | None:
        """Take the hit that a thread stopped for; None where it stopped for something else. Raises ProbesRefused."""
        try:
            data = self.kernel.get(self._hits, struct.pack("<Q", tid), self._hit_size, is_taken=True)
        except OSError as error:
            raise refused("a stop cannot be read", error) from error
        if data is None:
            return None
        number, *values = struct.unpack(f"<{self._hit_size // 8}Q", data)
        return ProbeHit(number, dict(zip(self._registers, values)))


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
    number = next((number for number in _SIGNALS if not taken >> number - 1 & 1), None)
    if number is not None:
        return int(number)
    raise ProbesRefused(
        "the program handles or blocks both signals by which a probe could stop a thread",
        why="SIGURG and SIGWINCH are those that do nothing to a process by default",
        help=_HELP,
    )


class ProbedHook(NamedTuple):
    """An address that is watched by a probe."""

    owner: ProbeHooks
    number: int
    spec: HookSpec

    def remove(self) -> None:
        """Have no thread stop there; the probe is taken away with all others. Raises ProbesRefused."""
        self.owner.drop(self.number)


class ProbeHooks:
    """The hooks of one command, in a process that a debugger holds."""

    def __init__(self, open_target: Callable[[], Target], read: Callable[[int, int], bytes]) -> None:
        """Probe the process of the target, which is opened anew when libraries have been loaded; ``read`` reads its
        memory. Raises ProbesRefused, TargetError."""
        self._open = open_target
        self._target = target = open_target()
        self._read = read
        self._stopper = ThreadStopper(target.architecture, target.pid)
        self._hooks: dict[int, ProbedHook] = {}
        self._number = 0
        """The number of hooks that this stopper has had."""
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
            self._stopper, self._number = ThreadStopper(self._target.architecture, self._target.pid), 0
        number, self._number = self._number, self._number + 1
        code = _code_in_file(self._target, spec.address)
        if not code:
            self._target = self._open()
            code = _code_in_file(self._target, spec.address)
        if not code:
            why = "the code there is in no file"
            raise ProbesRefused(f"no probe can be placed at {spec.address:#x}", why=why, help=_HELP)
        self._stopper.add(number, *code)
        hook = self._hooks[number] = ProbedHook(self, number, spec)
        return hook

    def drop(self, number: int) -> None:
        """Forget a hook; all probes are taken away with the last one. Idempotent. Raises ProbesRefused."""
        if not self._hooks.pop(number, None):
            return
        if self.is_spent:
            self.close()
        else:
            self._stopper.switch(number, False)

    @property
    def is_spent(self) -> bool:
        """There were hooks, and all were removed, the probes too."""
        return self._number > 0 and not self._hooks

    def begin(self, arms: bool = True) -> None:
        """Place the probes: the process is about to run. No thread stops there before arm(), which ``arms`` calls now.
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
        """Call the handler of the probe that the thread has got to, if that is why it stopped, and return its answer.
        Raises what it raises."""
        hit = self._hit = None if self.is_spent else self._stopper.hit(tid)
        if not hit or hit.number not in self._hooks:
            return False
        try:
            spec = self._hooks[hit.number].spec
            cfa = (hit.registers[spec.frame.register] + spec.frame.offset) & _WORD
            value = hit.registers[spec.register] if spec.register else 0
            if spec.load is not None:
                value = int.from_bytes(self._read((value + spec.load) & _WORD, 8), "little")
            stays_stopped = spec.handler(tid, cfa, value)
            if not self.is_spent:
                self.begin()
            return stays_stopped
        finally:
            self._hit = None

    def close(self) -> None:
        """Take all probes away; idempotent."""
        self._stopper.close()


def _code_in_file(target: Target, address: int) -> tuple[str, int] | None:
    """The file that is mapped at an address, and the offset in it."""
    for mapping in target.maps():
        if mapping.start <= address < mapping.end and mapping.path.startswith("/") and not mapping.deleted:
            return mapping.path, address - mapping.start + mapping.offset
    return None
