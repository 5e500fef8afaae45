"""Kernel probes that stop only the thread that reaches them, for a debugger that traces the process.

A BPF program saves the thread's registers and sends it a signal that is ignored by default (SIGURG, else SIGWINCH). A
tracer is notified of ignored signals, too (sig_ignored, kernel/signal.c). It sees the thread one instruction after the
probe, since the kernel delivers the signal after the probed instruction (uprobe_deny_signal, kernel/events/uprobes.c).

If the debugger is killed, a pending signal is ignored, and the probes are removed with the process that keeps them
(probe_keeper.py). A breakpoint's SIGTRAP would kill the process (ptrace_signal, kernel/signal.c).
"""

from __future__ import annotations

import os
import signal
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.targets.base_target import Target
from gdbext.engine.targets.live.proc_checks import living_threads
from gdbext.engine.targets.system.linux import signals_in
from gdbext.engine.targets.system.proc_files import status_fields
from gdbext.errors import ProbesRefused, TargetError
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.bpf_kernel import HASH, ProbePlace, refusal
from gdbext.tools.probes.bpf.place_program import saved_registers
from gdbext.tools.probes.bpf.probe_keeper import ProbeRun

if TYPE_CHECKING:
    from gdbext.live.host import HookSpec

_SIGNALS = (signal.SIGURG, signal.SIGWINCH)
"""Signals whose default is to be ignored (signal(7)). SIGCHLD is one, too, and has handlers more often."""
_INITIAL_NAMESPACE = "pid:[4026531836]"
"""PROC_PID_INIT_INO (include/linux/proc_ns.h): there the thread ids of the kernel's programs are ours."""
_HELP = "use --engine breakpoints"
_WORD = (1 << 64) - 1
_KEY, _NUMBER = -8, -16
"""Offsets on the program's stack from its end; the value for the map is below them."""


def harmless_signal(pid: int) -> int:
    """The number of a signal that the process ignores, even if its tracer is killed. Raises ProbesRefused if it handles
    or blocks all candidates."""
    if os.readlink("/proc/self/ns/pid") != _INITIAL_NAMESPACE:  # noqa: PTH115
        raise ProbesRefused(
            "probes cannot stop threads from inside a PID namespace (a container)",
            why="BPF programs identify a thread by its ID outside the namespace",
            help=f"run it on the host, or {_HELP}",
        )
    used = signals_in(status_fields(f"/proc/{pid}/status"), "SigCgt") or 0
    for thread in living_threads(pid):
        used |= signals_in(status_fields(f"/proc/{pid}/task/{thread}/status"), "SigBlk") or 0
    number = next((number for number in _SIGNALS if not used >> number - 1 & 1), None)
    if number is not None:
        return int(number)
    raise ProbesRefused(
        "the program handles or blocks both signals by which a probe could stop a thread",
        why="only SIGURG and SIGWINCH are ignored by default",
        help=_HELP,
    )


class ProbedHook(NamedTuple):
    """An address that a probe watches, as the ``number``-th hook of its owner."""

    owner: ProbeHooks
    number: int
    spec: HookSpec

    def remove(self) -> None:
        """Stop no more threads there; the probe itself is removed with all others. Raises ProbesRefused."""
        self.owner.drop(self.number)


class ProbeHooks:
    """The hooks of one command, in a process that a debugger traces, until close() or the end of this process."""

    def __init__(self, open_target: Callable[[], Target], read: Callable[[int, int], bytes]) -> None:
        """``open_target`` opens the process, again when libraries have been loaded; ``read``: (address, size) → its
        memory. Raises ProbesRefused, TargetError."""
        self._open = open_target
        self._target = target = open_target()
        self._read = read
        self._hooks: dict[int, ProbedHook] = {}
        self._hit: tuple[ProbedHook, Mapping[str, int]] | None = None
        """The hook whose handler runs, and the registers at its probe."""
        self.stack_pointer = target.architecture.stack_pointer  # the name of that register
        self._start()

    def _start(self) -> None:
        """Load the program, at the beginning and after the last hook was removed. Raises ProbesRefused."""
        architecture, pid = self._target.architecture, self._target.pid
        number = harmless_signal(pid)
        run, saved = ProbeRun(architecture, pid), saved_registers(architecture)
        registers = sorted(saved, key=saved.__getitem__)
        try:
            hits = run.own(run.kernel.memory(HASH, 8, 8 * (1 + len(registers)), 1 << 15))  # by thread
            wanted = run.own(run.kernel.memory(HASH, 8, 8, 1 << 14))  # by hook
            code = _stop_program([saved[name] for name in registers], hits, wanted, number)
            program = run.own(run.kernel.program(code))
        except BaseException:
            run.close()
            raise
        self._run, self._hits, self._wanted, self._program = run, hits, wanted, program
        self._registers = registers
        self.signal = number
        """The signal by which threads stop."""
        self._number = 0
        """The number of the next hook."""
        self._added: dict[str, list[ProbePlace]] = {}
        """File → hooks that begin() will place."""
        self._unarmed: set[int] = set()
        """Numbers of hooks that arm() will switch on."""

    def place(self, spec: HookSpec) -> ProbedHook:
        """Watch an address in all threads, from the next begin() or from the end of the running handler on. Raises
        ProbesRefused, TargetError."""
        if self.is_spent:
            self._start()
        number, self._number = self._number, self._number + 1
        code = _code_in_file(self._target, spec.address)
        if not code:
            self._target = self._open()
            code = _code_in_file(self._target, spec.address)
        if not code:
            why = "the code there is not in a file"
            raise ProbesRefused(f"no probe can be placed at {spec.address:#x}", why=why, help=_HELP)
        path, offset = code
        self._added.setdefault(path, []).append(ProbePlace(offset, number))
        self._unarmed.add(number)
        hook = self._hooks[number] = ProbedHook(self, number, spec)
        return hook

    def drop(self, number: int) -> None:
        """Remove the hook of that number; with the last one all probes are removed. Idempotent. Raises
        ProbesRefused."""
        if not self._hooks.pop(number, None):
            return
        if self.is_spent:
            self.close()
        else:
            self._switch(number, on=False)

    @property
    def is_spent(self) -> bool:
        """True if there were hooks, and all were removed with their probes."""
        return self._number > 0 and not self._hooks

    def begin(self, arms: bool = True) -> None:
        """Place the new probes before the process is resumed. Threads stop there only after arm(), which is called now
        if ``arms``. Raises ProbesRefused."""
        added, self._added = self._added, {}
        if self._run.keepers:
            for path, places in added.items():
                self._run.keepers[0].add(path, places)
        elif added:  # all in one link, because the kernel takes 0.1 s to remove one
            self._run.attach(self._program, added)
        if arms:
            self.arm()

    def arm(self) -> None:
        """Make threads stop at the probes from now on. Raises ProbesRefused."""
        while self._unarmed and not self.is_spent:
            self._switch(self._unarmed.pop(), on=True)

    def _switch(self, number: int, on: bool) -> None:
        """Switch a hook's probe on or off; one that is off costs a thread a microsecond. Raises ProbesRefused."""
        self._unarmed.discard(number)
        key = struct.pack("<Q", number)
        try:
            if on:
                self._run.kernel.put(self._wanted, key, bytes(8))
            else:
                self._run.kernel.get(self._wanted, key, 8, is_taken=True)
        except OSError as error:
            raise refusal("a probe cannot be switched", error) from error

    def waiting(self) -> list[int]:
        """Ids of threads that have stopped at probes, or are about to, and were not handled. Raises ProbesRefused."""
        try:
            keys = () if self.is_spent else self._run.kernel.keys(self._hits, 8)
            return [int.from_bytes(key.raw, "little") for key in keys]
        except OSError as error:
            raise refusal("stops cannot be read", error) from error

    def register(self, name: str) -> int | None:
        """Inside a handler: the value of a register at the probe; None for one that was not saved."""
        return self._hit[1].get(name) if self._hit else None

    def check_vectors(self) -> None:
        """Inside a handler: raises TargetError if the instruction at the probe may have changed a vector register."""
        if not self._hit or self._hit[0].number not in self._hooks:
            return
        code = self._read(self._hit[0].spec.address, 16)  # the longest instruction
        if not self._target.architecture.keeps_vectors(code):
            raise TargetError("the thread has executed an instruction since, which may have changed vector registers")

    def handle(self, tid: int) -> bool:
        """Call the handler of the probe at which the thread stopped, and return its result: True if the process must
        stay stopped. False if no probe stopped the thread. Raises what the handler raises, ProbesRefused."""
        size = 8 * (1 + len(self._registers))
        data = None
        try:
            if not self.is_spent:
                data = self._run.kernel.get(self._hits, struct.pack("<Q", tid), size, is_taken=True)
        except OSError as error:
            raise refusal("a stop cannot be read", error) from error
        number, *values = struct.unpack(f"<{size // 8}Q", data) if data else (-1,)
        hook = self._hooks.get(number)
        self._hit = None
        if not hook:
            return False
        registers, spec = dict(zip(self._registers, values)), hook.spec
        self._hit = hook, registers
        try:
            cfa = (registers[spec.frame.register] + spec.frame.offset) & _WORD
            value = registers[spec.register] if spec.register else 0
            if spec.load is not None:
                value = int.from_bytes(self._read((value + spec.load) & _WORD, 8), "little")
            stays_stopped = spec.handler(tid, cfa, value)
            if not self.is_spent:
                self.begin()
            return stays_stopped
        finally:
            self._hit = None

    def close(self) -> None:
        """Remove all probes; idempotent."""
        self._run.close()


def _stop_program(saved: Sequence[int], hits: int, wanted: int, signal_number: int) -> bytes:
    """The BPF program that, at a probe whose number is in the map ``wanted``, saves the thread's registers in the map
    ``hits`` and sends it the signal. ``saved``: the offsets of the registers in pt_regs."""
    hit = _NUMBER - 8 * (1 + len(saved))
    copies = (f"[fp + {hit + 8 * index}] = [r6 + {offset}]" for index, offset in enumerate(saved, 1))
    newline = "\n"
    return bpf.assemble(f"""
        r6 = r1
        call get_attach_cookie()
        [fp + {_NUMBER}] = r0
        [fp + {hit}] = r0
        {bpf.look_up(wanted, _NUMBER)}
        if r0 == 0 goto end
        call get_current_pid_tgid()
        w0 = w0
        [fp + {_KEY}] = r0
        {newline.join(copies)}
        {bpf.put(hits, _KEY, hit)}
        if r0 != 0 goto end
        call send_signal_thread({signal_number})
    end:
        return 0
    """)


def _code_in_file(target: Target, address: int) -> tuple[str, int] | None:
    """(path of the file that is mapped at an address, offset in it); None for memory without an existing file."""
    for mapping in target.memory.maps():
        if mapping.start <= address < mapping.end and mapping.path.startswith("/") and not mapping.deleted:
            return mapping.path, address - mapping.start + mapping.offset
    return None
