"""One object per architecture: its registers, calling convention, system calls, signal frames and instructions.

No other code names a register, a system call or an instruction. Registers are a plain mapping from name to value, for
the unwinder's speed: ``registers[architecture.stack_pointer]``.
"""

from __future__ import annotations

import struct
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from gdbext.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from gdbext.engine.arch.instruction import Instruction

    ReadCode = Callable[[int, int], bytes]  # (address, size) → exactly ``size`` bytes; b"" if they cannot be read


class Passing(Enum):
    """How a C++ argument is passed, decided by its type alone."""

    WORD = "word"  # an integer, a pointer, a reference, a small structure: one register for integers
    TWO_WORDS = "two words"  # a structure of 9 to 16 bytes without floating-point members
    FLOAT = "float"
    FLOAT_AND_WORD = "float and word"  # a structure of a double and something else
    WORD_AND_FLOAT = "word and float"  # a structure of something else and a double
    MEMORY = "memory"  # a structure of more than 16 bytes: three words, copied to the stack


class Slot(NamedTuple):
    """One word of an argument.

    ``register`` is the index of an argument register, ``float_register`` the index of one for floating-point numbers. A
    word on the stack has neither: it is ``offset`` bytes above the CFA of the called function.
    """

    register: int | None = None
    offset: int | None = None
    float_register: int | None = None


class SignalFrame(NamedTuple):
    """The words that the kernel leaves on the stack for a signal handler (``struct rt_sigframe`` of the architecture).

    ``trampoline`` is the code that a handler returns to, ``entries`` the offsets in it that a frame's pc may have.
    ``context`` is the offset of the saved registers (``struct sigcontext``) from the stack pointer there, and ``saved``
    where each of them is in it; all are 8 bytes wide. ``siginfo`` is the offset of ``siginfo_t`` from that stack
    pointer; the kernel fills it in only for handlers installed with SA_SIGINFO. ``trap`` and ``fault_address`` are the
    offsets in the context of the exception's number and of the address that a page fault was about: both stay as the
    thread's last fault left them if another process sent the signal. ``trap_signals`` has the signals (signal(7)) that
    an exception raises, ``page_fault`` is the number of that exception.
    """

    trampoline: bytes
    entries: tuple[int, ...]
    context: int
    saved: Mapping[str, int]
    siginfo: int
    trap: int
    fault_address: int
    trap_signals: Mapping[int, tuple[int, ...]]
    page_fault: int


class TlsRelocations(NamedTuple):
    """Types of the relocations of thread-local variables: of a module's id, of an offset from the thread pointer, of a
    descriptor."""

    module_id: int
    offset: int
    descriptor: int


class Probing(NamedTuple):
    """Numbers that kernel probes need: of bpf(2) and perf_event_open(2), and offsets of registers in ``struct
    pt_regs``."""

    bpf_call: int
    perf_call: int
    saved: Mapping[str, int]


class FrameRecord(NamedTuple):
    """Offsets from a frame pointer, in bytes: of the caller's frame pointer, of the return address, of the frame's
    end."""

    pointer: int
    returns: int
    end: int


class FloatRegisters(NamedTuple):
    """Vector registers as ptrace and cores give them: the type of the note (NT_PRFPREG), its size in bytes, and the
    offset of each register in it."""

    kind: int
    size: int
    offsets: Mapping[str, int]


class AddressUse(NamedTuple):
    """The instruction at ``instruction`` computes ``address``, or loads from it."""

    instruction: int
    address: int
    loads: bool


class LoadedMember(NamedTuple):
    """The result of a function that only loads a member of the object that its first argument points to."""

    offset: int
    size: int


class ThreadsOrGlobal(NamedTuple):
    """The result of a function that only loads the first word of the running thread's object, or of a global one if
    the thread has none.

    The thread pointer, plus the offset in the word at ``slot``, plus ``displacement``, is the address of a pointer;
    ``member`` bytes behind its target is the thread's object. ``otherwise`` is the address of the global object.
    """

    slot: int
    displacement: int
    member: int
    otherwise: int


class Architecture(Protocol):
    """One architecture. There is one instance of each, which has no state (architectures.py finds it)."""

    name: str  # the name as the kernel has it (uname -m), and as layouts and recordings have it
    title: str  # the name in printed text
    elf_machine: int  # e_machine of its ELF files

    general_registers: tuple[str, ...]
    """Registers that every target gives for every thread, the program counter included."""
    system_registers: tuple[str, ...]  # further registers that some targets give, by the debuggers' names
    register_sets: Mapping[int, tuple[str, ...]]
    """ptrace's register sets, which are also the types of a core's notes (NT_PRSTATUS 1, …): the fields of each in
    order, 8 bytes each."""
    dwarf_registers: tuple[str, ...]  # names by DWARF number, of the registers that unwinding tracks
    return_column: int  # the DWARF number of the return address in call frame information
    program_counter: str
    spin_hint: bytes
    """The instruction by which loops that wait without sleeping tell the CPU so."""
    stack_pointer: str
    frame_pointer: str
    result_register: str  # the register in which a function leaves a result of one word
    result_pointer: str
    """The register with the address of the memory for a result that does not fit in registers (sret)."""
    thread_register: str  # the register that points to the thread's control block
    syscall_register: str
    """The system register with the number of the system call that a thread is in; "" if it is a general register."""

    argument_registers: tuple[str, ...]  # registers of integer and pointer arguments, in order
    float_argument_registers: tuple[str, ...]
    """Vector registers with floating-point arguments in their low bytes, in order; no function preserves them."""
    float_registers: FloatRegisters
    callee_saved: tuple[str, ...]  # registers that a called function preserves; without the stack pointer
    call_pushes: int  # bytes that a call itself pushes: those of the return address, 0 if a register holds it
    frame_record: FrameRecord
    red_zone: int  # bytes below the stack pointer that a leaf function may use

    longest_instruction: int
    longest_direct_call: int
    """Bytes of a call instruction that contains its target, or the address of the word with its target."""
    breakpoint_code: bytes  # the instruction that debuggers and kernel probes write over others
    entry_marks: tuple[bytes, ...]  # instructions that mark the target of an indirect call or jump
    padding: tuple[bytes, ...]  # beginnings of the instructions that fill the space between functions
    signal_frame: SignalFrame
    probing: Probing
    tls_relocations: TlsRelocations

    user_limit: int  # the first address beyond user space, with the usual number of page-table levels
    kernel_mappings: Mapping[int, str]  # mappings that the kernel makes at fixed addresses: start to name

    syscall_names: Mapping[int, str]  # number → name of the system calls in which a thread may block
    other_syscall_names: Mapping[int, str]  # of those that containers refuse

    def __hash__(self) -> int:  # said for mypy, which takes no protocol for hashable by itself
        return id(self)

    @cached_property
    def tracked_registers(self) -> frozenset[str]:
        """Registers that are known of a caller: what a call preserves, and what it returns to."""
        return_register = self.dwarf_registers[self.return_column]
        return frozenset((*self.callee_saved, self.stack_pointer, self.program_counter, return_register))

    def leading_arguments(self, uses_sret: bool) -> int:
        """Number of argument registers before the first argument: 1 if the result is left in memory (``uses_sret``)
        and the pointer to that memory is passed like an argument, else 0."""
        return int(uses_sret and self.result_pointer in self.argument_registers)

    def return_slot(self, cfa: int) -> int:
        """Address of the stack word with the return address of the function whose frame ends at ``cfa``. Raises
        TargetError if a call leaves it in a register."""
        if not self.call_pushes:
            raise TargetError(f"calls do not push the return address on {self.title}")
        return cfa - self.call_pushes

    def return_address(self, read: Callable[[int, int], bytes], cfa: int) -> int:
        """The return address of the function whose frame ends at ``cfa``. Raises as return_slot and ``read`` do."""
        return int.from_bytes(read(self.return_slot(cfa), 8), "little")

    def unpack_registers(self, kind: int, data: bytes) -> dict[str, int]:
        """Name → value of the registers in ``data``, the register set ``kind`` of ``register_sets`` as ptrace and cores
        give it. Raises TargetError."""
        names = self.register_sets[kind]
        if len(data) < 8 * len(names):
            raise TargetError(f"register set {kind} has {len(data)} bytes instead of {8 * len(names)}")
        return dict(zip(names, struct.unpack_from(f"<{len(names)}Q", data)))

    def unpack_floats(self, data: bytes) -> dict[str, int]:
        """Name → low 8 bytes of each vector register, from the note that ``float_registers`` describes; {} if it is
        too short."""
        if len(data) < self.float_registers.size:
            return {}
        return {name: int.from_bytes(data[at : at + 8], "little") for name, at in self.float_registers.offsets.items()}

    def thread_pointer(self, registers: Mapping[str, int]) -> int:
        """The address of the thread's control block, 0 if unknown."""
        return registers.get(self.thread_register, 0)

    def blocked_syscall(self, registers: Mapping[str, int], read: ReadCode) -> tuple[int, tuple[int, ...]] | None:
        """(number, arguments) of the system call that a stopped thread is in; None if it runs user code."""

    def restarted_syscall(self, number: int, read: ReadCode, cfa: int) -> int:
        """The number of the system call that resumes after a stop, if ``number`` says only that one does; else
        ``number``. ``cfa`` is that of the caller of the function with the system call."""

    def syscall_end(self, registers: Mapping[str, int], read: ReadCode) -> int | None:
        """Address behind the instruction of the system call that a stopped thread is in; None if it runs user code."""

    def sleeping_registers(
        self, number: int, arguments: Sequence[int], stack_pointer: int, program_counter: int
    ) -> dict[str, int]:
        """Name → value of the registers that are known while a thread sleeps in system call ``number`` (-1: none)."""

    def stopped_at_trap(self, registers: Mapping[str, int], read: ReadCode) -> bool:
        """True if the thread has just executed a breakpoint instruction that is in memory."""

    def is_behind_syscall(self, read: ReadCode, pc: int) -> bool:
        """True if the instruction before ``pc`` is a system call."""

    def refused_call(self, registers: Mapping[str, int], read: ReadCode) -> int | None:
        """The number of the system call for which the kernel has just sent SIGSYS; None if the thread is not behind
        one."""

    def illegal_instruction(self, code: bytes) -> str:
        """What the instruction is that raised SIGILL, as a noun with an article; "" if it is not recognized. ``code``
        begins with it."""

    def decode(self, code: bytes, address: int) -> Iterator[Instruction]:
        """The instructions of ``code``, which is at ``address``, until its end or an unknown instruction."""

    def keeps_vectors(self, code: bytes) -> bool:
        """True if the first instruction of ``code`` surely changes no vector register."""

    def follows_call(self, before: bytes) -> bool:
        """True if ``before`` can end with a call instruction, so that a return address may follow."""

    def follows_call_by_pointer(self, before: bytes) -> bool:
        """True if ``before`` can end with a call through a register or through memory."""

    def call_target(self, before: bytes, returns_to: int) -> int:
        """The target of the direct call at the end of ``before``, which returns to ``returns_to``; 0 if none."""

    def call_slot(self, before: bytes, returns_to: int) -> int:
        """Address of the word from which the call at the end of ``before`` takes its target; 0 if it is not fixed."""

    def return_address_offset(self, at: bytes, before: bytes) -> int | None:
        """Offset of the return address from the stack pointer, at a function's first or last instructions or in a jump
        stub; None anywhere else. ``at`` is the code at the program counter, ``before`` the code before it. Callers must
        check the word there."""

    def stub_slot(self, code: bytes, address: int) -> int:
        """Address of the word from which the stub of a procedure linkage table at ``address`` takes its target; 0 for
        other code."""

    def stubs(self, table: bytes, address: int) -> Iterator[tuple[int, int]]:
        """(address of the stub, address of the word with its target) for each stub of a procedure linkage table."""

    def direct_calls(self, code: bytes, targets: Collection[int]) -> Iterator[tuple[int, int]]:
        """(offset in ``code``, target) of each direct call of one of ``targets``, which are offsets, too."""

    def slot_calls(self, code: bytes, slots: Collection[int]) -> Iterator[tuple[int, int]]:
        """(offset in ``code``, slot) of each call through a word at one of ``slots``, which are offsets, too."""

    def place_arguments(self, arguments: Sequence[Passing]) -> list[tuple[Slot, ...]]:
        """The words of each argument of a call, by the calling convention."""

    def probe_offset(self, code: bytes, argument_count: int) -> int | None:
        """Offset in a function, which starts with ``code``, at which a kernel probe is cheap and the first
        ``argument_count`` arguments are still in their registers; None if there is none."""

    def table_accesses(self, code: bytes, displacement: int, shift: int, within: int) -> Iterator[int]:
        """Offsets in ``code`` of the instructions that compute the address of an entry of a table, which is
        ``displacement`` bytes into a structure, at most ``within`` bytes behind a right shift by ``shift`` bits."""

    def has_operand(self, code: bytes, value: int) -> bool:
        """True if an instruction in ``code`` can have ``value`` as an immediate operand or a displacement."""

    def loaded_member(self, code: bytes) -> LoadedMember | None:
        """The result of a function, which starts with ``code``, if it only loads an unsigned member of its first
        argument; else None."""

    def threads_or_global(self, code: bytes, address: int) -> ThreadsOrGlobal | None:
        """The result of the function at ``address``, which starts with ``code``; None for another kind of function."""

    def address_uses(self, code: bytes, address: int) -> Iterable[AddressUse]:
        """The instructions in ``code``, which starts at ``address``, that name a fixed address."""
