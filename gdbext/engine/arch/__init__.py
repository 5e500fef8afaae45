"""One object per architecture: its registers, calling convention, system calls, signal frames and instructions.

No other code names a register, a system call or an instruction. A register is a name and a value in a plain mapping,
which is what the unwinder can afford: ``registers[architecture.stack_pointer]``.
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from gdbext.errors import TargetError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from gdbext.engine.arch.instruction import Instruction

    ReadCode = Callable[[int, int], bytes]
    """Reads exactly ``size`` bytes at ``address``; b"" where they cannot be read."""


class Passing(Enum):
    """The way in which a C++ argument travels, by its type alone."""

    WORD = "word"
    """An integer, a pointer, a reference, a small structure: one register for integers."""
    TWO_WORDS = "two words"
    """A structure of 9 to 16 bytes without floating-point members."""
    FLOAT = "float"
    FLOAT_AND_WORD = "float and word"
    """A structure of a double and something else."""
    WORD_AND_FLOAT = "word and float"
    """The same, the other way round."""
    MEMORY = "memory"
    """A structure of more than 16 bytes: three words, copied to the stack."""


class Slot(NamedTuple):
    """One word of an argument.

    ``register`` is the number of an argument register, ``float_register`` that of one for floating-point numbers. A
    word on the stack has neither: it is at ``offset`` bytes from the top of the caller's stack (the CFA of the called
    function).
    """

    register: int | None = None
    offset: int | None = None
    float_register: int | None = None


class SignalFrame(NamedTuple):
    """The words that the kernel leaves on the stack for a signal handler (``struct rt_sigframe`` of the architecture).

    ``trampoline`` is the code that a handler returns to, ``entries`` the offsets in it at which a frame may stand.
    ``context`` is the offset of the saved registers (``struct sigcontext``) from the stack pointer there, and ``saved``
    where each of them is in it; all are 8 bytes wide.
    """

    trampoline: bytes
    entries: tuple[int, ...]
    context: int
    saved: Mapping[str, int]


class TlsRelocations(NamedTuple):
    """Types of the relocations by which thread-local variables are found: of a module's id, of an offset from the
    thread pointer, of a descriptor."""

    module_id: int
    offset: int
    descriptor: int


class Probing(NamedTuple):
    """The needs of kernel probes: the numbers of bpf(2) and perf_event_open(2); where ``struct pt_regs`` has
    registers."""

    bpf_call: int
    perf_call: int
    saved: Mapping[str, int]


class FrameRecord(NamedTuple):
    """The record that a frame pointer leads to, in bytes behind it: where the caller's frame pointer and the return
    address are saved, and where the frame ends."""

    pointer: int
    returns: int
    end: int


class FloatRegisters(NamedTuple):
    """Vector registers as ptrace and cores give them: the type of the note (NT_PRFPREG), its size in bytes, and where
    in it each register begins."""

    kind: int
    size: int
    offsets: Mapping[str, int]


class AddressUse(NamedTuple):
    """An instruction that makes an address, or loads from it: where it stands, the address, and whether it loads."""

    instruction: int
    address: int
    loads: bool


class LoadedMember(NamedTuple):
    """The result of a function that does nothing but load: a member of the object that its first argument points at."""

    offset: int
    size: int


class ThreadsOrGlobal(NamedTuple):
    """The result of a function that does nothing but load the first word of an object of the running thread, or of a
    global one where the thread has none.

    ``slot`` is the address of the word with an offset from the thread pointer; ``displacement`` behind that is a
    pointer, and ``member`` bytes behind what it points at is the object. ``otherwise`` is the global one.
    """

    slot: int
    displacement: int
    member: int
    otherwise: int


class Architecture(ABC):
    """One architecture. There is one instance of each, made by ``registry``; it has no state."""

    # --- identity --------------------------------------------------------------------------------

    name: str
    """The name as the kernel has it (uname -m), and as layouts and recordings have it."""
    title: str
    """The name of the architecture for people."""
    elf_machine: int
    """e_machine of its ELF files."""

    # --- registers -------------------------------------------------------------------------------

    general_registers: tuple[str, ...]
    """Registers that every target gives for every thread, the program counter among them."""
    system_registers: tuple[str, ...]
    """Further ones that a target gives where it can, as debuggers call them."""
    register_sets: Mapping[int, tuple[str, ...]]
    """ptrace's register sets, which are also the types of a core's notes (NT_PRSTATUS 1, …): the fields of each in
    order, 8 bytes each."""
    dwarf_registers: tuple[str, ...]
    """Names by DWARF number, as far as call frame information is followed."""
    return_column: int
    """The DWARF number under which call frame information has the return address."""
    program_counter: str
    stack_pointer: str
    frame_pointer: str
    result_register: str
    """The register in which a function leaves a result of one word."""
    result_pointer: str
    """The register that tells a function in which memory it leaves a result that has no room in registers."""
    thread_register: str
    """The register that points to the thread's control block."""
    syscall_register: str
    """The system register in which the kernel keeps the number of the system call that a thread is in; "" where that
    is a general register."""

    # --- calls -----------------------------------------------------------------------------------

    argument_registers: tuple[str, ...]
    """Registers of integer and pointer arguments, in order."""
    float_argument_registers: tuple[str, ...]
    """Registers of floating-point arguments, in order: in the low bytes of vector registers, which no called function
    preserves."""
    float_registers: FloatRegisters
    callee_saved: tuple[str, ...]
    """Registers that a called function preserves; without the stack pointer."""
    call_pushes: int
    """Bytes that a call itself puts on the stack: the return address, or nothing where that is in a register."""
    frame_record: FrameRecord
    red_zone: int
    """Bytes below the stack pointer that a function may use."""

    # --- code ------------------------------------------------------------------------------------

    longest_instruction: int
    longest_direct_call: int
    """Bytes of a call instruction that names its target, or the place that holds it."""
    breakpoint_code: bytes
    """The instruction that debuggers and kernel probes write over others."""
    entry_marks: tuple[bytes, ...]
    """Instructions that only the target of an indirect call or jump begins with."""
    padding: tuple[bytes, ...]
    """Beginnings of the instructions that fill the space between functions."""
    signal_frame: SignalFrame
    probing: Probing
    tls_relocations: TlsRelocations

    # --- memory ----------------------------------------------------------------------------------

    user_limit: int
    """The first address beyond user space, with the usual number of page-table levels."""
    kernel_mappings: Mapping[int, str]
    """Mappings that the kernel makes at fixed addresses: start to name."""

    # --- the kernel ------------------------------------------------------------------------------

    syscall_names: Mapping[int, str]
    """Names of the system calls in which a thread may block, by number."""

    @cached_property
    def followed(self) -> frozenset[str]:
        """Registers that are known of a caller: what a call preserves, and what it returns to."""
        return_register = self.dwarf_registers[self.return_column]
        return frozenset((*self.callee_saved, self.stack_pointer, self.program_counter, return_register))

    def leading_arguments(self, hidden: bool) -> int:
        """Number of argument registers before all arguments: one where the result is ``hidden`` (left in memory)
        and the pointer to that memory is passed like an argument."""
        return int(hidden and self.result_pointer in self.argument_registers)

    def return_slot(self, cfa: int) -> int:
        """Address of the return address of the function whose frame ends at ``cfa``. Raises TargetError
        where a call leaves it in a register."""
        if not self.call_pushes:
            raise TargetError(f"where a call returns to is in no fixed place of the stack on {self.title}")
        return cfa - self.call_pushes

    def return_address(self, read: Callable[[int, int], bytes], cfa: int) -> int:
        """The return address of the function whose frame ends at ``cfa``. Raises TargetError as return_slot does, and
        what ``read`` raises."""
        return int.from_bytes(read(self.return_slot(cfa), 8), "little")

    def unpack_registers(self, kind: int, data: bytes) -> dict[str, int]:
        """The registers of one of ``register_sets``, as ptrace and cores give it. Raises TargetError."""
        names = self.register_sets[kind]
        if len(data) < 8 * len(names):
            raise TargetError(f"register set {kind} has {len(data)} bytes instead of {8 * len(names)}")
        return dict(zip(names, struct.unpack_from(f"<{len(names)}Q", data)))

    def unpack_floats(self, data: bytes) -> dict[str, int]:
        """The low 8 bytes of each vector register, by the note that ``float_registers`` describes; {} where it is
        shorter than that."""
        if len(data) < self.float_registers.size:
            return {}
        return {name: int.from_bytes(data[at : at + 8], "little") for name, at in self.float_registers.offsets.items()}

    def thread_pointer(self, registers: Mapping[str, int]) -> int:
        """The address of the thread's control block, 0 where the target does not give it."""
        return registers.get(self.thread_register, 0)

    @abstractmethod
    def blocked_syscall(self, registers: Mapping[str, int], read: ReadCode) -> tuple[int, tuple[int, ...]] | None:
        """Number and arguments of the system call that a stopped thread is in; None when it runs user code."""

    @abstractmethod
    def restarted_syscall(self, number: int, read: ReadCode, cfa: int) -> int:
        """The number of the system call that resumes after a stop, where ``number`` says only that one does.

        ``cfa`` is that of the caller of the function that makes the call."""

    @abstractmethod
    def syscall_end(self, registers: Mapping[str, int], read: ReadCode) -> int | None:
        """Address behind the instruction of the system call that a stopped thread is in; None when it runs user
        code."""

    @abstractmethod
    def sleeping_registers(
        self, number: int, arguments: Sequence[int], stack_pointer: int, program_counter: int
    ) -> dict[str, int]:
        """The known registers of a thread while it sleeps in system call ``number`` (-1: in none)."""

    @abstractmethod
    def stopped_at_trap(self, registers: Mapping[str, int], read: ReadCode) -> bool:
        """The thread has just executed a breakpoint instruction that stands in memory."""

    # --- code ------------------------------------------------------------------------------------

    @abstractmethod
    def decode(self, code: bytes, address: int) -> Iterator[Instruction]:
        """The instructions of ``code``, which starts at ``address``, until its end or one that is not understood."""

    @abstractmethod
    def keeps_vectors(self, code: bytes) -> bool:
        """The instruction that ``code`` begins with surely changes no vector register, by itself."""

    @abstractmethod
    def follows_call(self, before: bytes) -> bool:
        """The last bytes of ``before`` can be a call instruction, so that a return address may follow them."""

    @abstractmethod
    def follows_call_by_pointer(self, before: bytes) -> bool:
        """The last bytes of ``before`` can be a call through a register or through memory."""

    @abstractmethod
    def called(self, before: bytes, returns_to: int) -> int:
        """The target of the direct call that ends ``before`` and returns to ``returns_to``; 0 if there is none."""

    @abstractmethod
    def called_slot(self, before: bytes, returns_to: int) -> int:
        """Address of the word through which the call goes that ends ``before``, at a fixed address; 0 if none is."""

    @abstractmethod
    def return_address_offset(self, at: bytes, before: bytes) -> int | None:
        """Offset of the return address from the stack pointer, at a function's edge or in a jump stub.

        ``at`` is the code at the program counter, ``before`` the code before it. None anywhere else. What is found
        there has to be checked.
        """

    @abstractmethod
    def stub_slot(self, code: bytes, address: int) -> int:
        """The slot through which the stub of a procedure linkage table at ``address`` jumps; 0 for other code."""

    @abstractmethod
    def stubs(self, table: bytes, address: int) -> Iterator[tuple[int, int]]:
        """(stub, its slot) of each stub in a procedure linkage table that starts at ``address``."""

    @abstractmethod
    def direct_calls(self, code: bytes, targets: Collection[int]) -> Iterator[tuple[int, int]]:
        """(offset in ``code``, target) of each direct call of ``targets``, offsets from the start of ``code``, too."""

    @abstractmethod
    def slot_calls(self, code: bytes, slots: Collection[int]) -> Iterator[tuple[int, int]]:
        """(offset in ``code``, slot) of each call through one of ``slots``, words at fixed addresses: offsets from the
        start of ``code``, too."""

    @abstractmethod
    def place_arguments(self, arguments: Sequence[Passing]) -> list[tuple[Slot, ...]]:
        """Places of the words of each argument of a call, by the calling convention."""

    @abstractmethod
    def probe_offset(self, code: bytes, argument_count: int) -> int | None:
        """Offset in a function that starts with ``code`` at which a kernel probe is cheap and the first
        ``argument_count`` arguments are still in their registers; None where there is no such place."""

    @abstractmethod
    def table_accesses(self, code: bytes, displacement: int, shift: int, within: int) -> Iterator[int]:
        """Offsets in ``code`` of the instructions that make the address of an indexed entry of a table, which is
        ``displacement`` bytes into a structure, with a right shift by ``shift`` bits at most ``within`` bytes
        before."""

    @abstractmethod
    def has_operand(self, code: bytes, value: int) -> bool:
        """An instruction in ``code`` can have the number as an immediate operand or as a displacement."""

    @abstractmethod
    def loaded_member(self, code: bytes) -> LoadedMember | None:
        """The result of a function that starts with ``code``, where all that it does is to load an unsigned member of
        its first argument; None for any other function."""

    @abstractmethod
    def threads_or_global(self, code: bytes, address: int) -> ThreadsOrGlobal | None:
        """The result of the function at ``address``, which starts with ``code``; None for any other function."""

    @abstractmethod
    def address_uses(self, code: bytes, address: int) -> Iterable[AddressUse]:
        """The instructions in ``code``, which starts at ``address``, that name a fixed address."""
