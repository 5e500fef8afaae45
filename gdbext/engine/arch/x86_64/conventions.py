"""The conventions of x86-64 Linux: its registers, how arguments are passed, and system calls.

Sources: System V ABI, AMD64 supplement 1.0, section 3.2.3 (arguments), figures 3.4 (use of registers) and 3.36 (DWARF
numbers); glibc 2.36, sys/user.h (``struct user_regs_struct``); Linux ``arch/x86/include/uapi/asm/sigcontext.h`` and
``ucontext.h``; arch/x86/entry/syscalls/syscall_64.tbl (numbers of system calls); include/linux/errno.h (-ERESTART*).

While a thread is blocked in a system call, orig_rax has the call's number and the argument registers are unchanged; rax
tells whether the call will be restarted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gdbext.engine.arch import FloatRegisters, Passing, SignalFrame, Slot
from gdbext.engine.numbers import integer

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gdbext.engine.arch import ReadCode

_NUMBERED = tuple(f"r{number}" for number in range(8, 16))
GENERAL = ("rax", "rbx", "rcx", "rdx", "rsi", "rdi", "rbp", "rsp", *_NUMBERED, "rip")
SYSTEM = ("eflags", "orig_rax", "fs_base", "gs_base")
"""gdb's names; the last three exist on Linux only, and a gdbserver may lack them."""

BY_ENCODING = ("rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", *_NUMBERED)
"""General registers by their number in instructions."""

BY_DWARF_NUMBER = ("rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", *_NUMBERED, "rip")
RETURN_COLUMN = 16

FLOATS = tuple(f"xmm{number}" for number in range(16))
"""Vector registers by their number in instructions; doubles are in their low 8 bytes."""
FLOAT_ARGUMENTS = FLOATS[:8]
FLOAT_REGISTERS = FloatRegisters(2, 512, {name: 160 + 16 * number for number, name in enumerate(FLOATS)})
"""NT_PRFPREG: ``struct user_fpregs_struct``, in which ``xmm_space`` has 16 bytes for each register."""

ARGUMENTS = ("rdi", "rsi", "rdx", "rcx", "r8", "r9")
SYSCALL_ARGUMENTS = ("rdi", "rsi", "rdx", "r10", "r8", "r9")
CALLEE_SAVED = ("rbx", "rbp", "r12", "r13", "r14", "r15")

USER_REGS = (
    *("r15", "r14", "r13", "r12", "rbp", "rbx", "r11", "r10", "r9", "r8", "rax", "rcx", "rdx", "rsi", "rdi"),
    *("orig_rax", "rip", "cs", "eflags", "rsp", "ss", "fs_base", "gs_base", "ds", "es", "fs", "gs"),
)
"""The fields of ``struct user_regs_struct`` in order."""

SIGNAL_FRAME = SignalFrame(
    # mov $15, %rax; syscall: what every C library's restorer consists of (__NR_rt_sigreturn is 15).
    trampoline=bytes.fromhex("48c7c00f0000000f05"),
    entries=(0, 7),
    # struct ucontext: uc_flags 8, uc_link 8, uc_stack 24 bytes, then uc_mcontext.
    context=40,
    saved={
        name: 8 * number
        for number, name in enumerate((*_NUMBERED, "rdi", "rsi", "rbp", "rbx", "rdx", "rax", "rcx", "rsp", "rip"))
    },
    # behind uc_mcontext (256 bytes) and uc_sigmask (8 bytes): struct rt_sigframe (arch/x86/include/asm/sigframe.h)
    siginfo=304,
    # behind the registers: eflags, cs and others, err, trapno, oldmask, cr2 (struct sigcontext_64)
    trap=160,
    fault_address=176,
    # arch/x86/include/asm/trapnr.h and the handlers in arch/x86/kernel/traps.c: SIGILL 4, SIGTRAP 5, SIGBUS 7, SIGFPE
    # 8, SIGSEGV 11
    trap_signals={
        0: (8,),
        1: (5,),
        3: (5,),
        4: (11,),
        6: (4,),
        11: (7,),
        12: (7,),
        13: (11,),
        14: (11, 7),
        16: (8,),
        17: (7,),
        19: (8,),
    },
    page_fault=14,
)
"""``struct sigcontext_64`` behind the return address into the trampoline."""


_WORD = 8
_NEEDS = {
    Passing.WORD: (1, 0),
    Passing.TWO_WORDS: (2, 0),
    Passing.FLOAT: (0, 1),
    Passing.FLOAT_AND_WORD: (1, 1),
    Passing.WORD_AND_FLOAT: (1, 1),
}
"""(integer registers, floating-point registers) that an argument takes; if too few are left, all its words are on the
stack."""


def place_arguments(arguments: Sequence[Passing]) -> list[tuple[Slot, ...]]:
    """The words of each argument of a call, in order."""
    integers = floats = stacked = 0
    places: list[tuple[Slot, ...]] = []
    for passing in arguments:
        needed_integers, needed_floats = _NEEDS.get(passing, (0, 0))
        count = needed_integers + needed_floats
        if not count or integers + needed_integers > len(ARGUMENTS) or floats + needed_floats > len(FLOAT_ARGUMENTS):
            count = count or 3  # Passing.MEMORY
            places.append(tuple(Slot(offset=stacked + _WORD * number) for number in range(count)))
            stacked += _WORD * count
            continue
        in_floats = tuple(Slot(float_register=floats + number) for number in range(needed_floats))
        in_integers = tuple(Slot(integers + number) for number in range(needed_integers))
        float_last = passing is Passing.WORD_AND_FLOAT
        places.append(in_integers + in_floats if float_last else in_floats + in_integers)
        integers, floats = integers + needed_integers, floats + needed_floats
    return places


_NAMES = """
    0:read 1:write 2:open 3:close 4:stat 5:fstat 6:lstat 7:poll 9:mmap 11:munmap 16:ioctl 17:pread64 18:pwrite64
    19:readv 20:writev 21:access 22:pipe 23:select 26:msync 28:madvise 34:pause 35:nanosleep 40:sendfile 42:connect
    43:accept 44:sendto 45:recvfrom 46:sendmsg 47:recvmsg 56:clone 57:fork 58:vfork 59:execve 61:wait4 65:semop
    69:msgsnd 70:msgrcv 72:fcntl 73:flock 74:fsync 75:fdatasync 76:truncate 77:ftruncate 80:chdir 82:rename 83:mkdir
    87:unlink 89:readlink 101:ptrace 126:capset 128:rt_sigtimedwait 130:rt_sigsuspend 137:statfs 138:fstatfs
    149:mlock 202:futex 208:io_getevents 217:getdents64 219:restart_syscall 220:semtimedop 230:clock_nanosleep
    232:epoll_wait 242:mq_timedsend 243:mq_timedreceive 247:waitid 257:openat 262:newfstatat 263:unlinkat
    267:readlinkat 269:faccessat 270:pselect6 271:ppoll 275:splice 281:epoll_pwait 285:fallocate 288:accept4
    295:preadv 296:pwritev 299:recvmmsg 307:sendmmsg 316:renameat2 318:getrandom 322:execveat 326:copy_file_range
    332:statx 426:io_uring_enter 435:clone3 439:faccessat2 441:epoll_pwait2 449:futex_waitv 455:futex_wait
"""
NAMES = {integer(number): name for number, name in (entry.split(":") for entry in _NAMES.split())}
"""Names of system calls by number."""
_REFUSED_NAMES = """
    41:socket 59:execve 134:uselib 135:personality 136:ustat 139:sysfs 153:vhangup 155:pivot_root 156:_sysctl 161:chroot
    163:acct 164:settimeofday 165:mount 166:umount2 167:swapon 168:swapoff 169:reboot 172:iopl 173:ioperm
    175:init_module 176:delete_module 179:quotactl 203:sched_setaffinity 212:lookup_dcookie 227:clock_settime
    237:mbind 238:set_mempolicy 239:get_mempolicy 246:kexec_load 248:add_key 249:request_key 250:keyctl
    256:migrate_pages 272:unshare 279:move_pages 298:perf_event_open 304:open_by_handle_at 305:clock_adjtime
    308:setns 310:process_vm_readv 311:process_vm_writev 312:kcmp 313:finit_module 317:seccomp 319:memfd_create
    320:kexec_file_load 321:bpf 323:userfaultfd 334:rseq 425:io_uring_setup 427:io_uring_register 434:pidfd_open
    438:pidfd_getfd 450:set_mempolicy_home_node
"""
REFUSED_NAMES = {integer(number): name for number, name in (entry.split(":") for entry in _REFUSED_NAMES.split())}
"""Names of those that containers' seccomp profiles refuse (default.json of moby), by number."""

_RESTART = 219
_RESTARTED = (7, 35, 202, 230)
"""poll, nanosleep, futex and clock_nanosleep: what restart_syscall resumes (set_restart_fn in Linux)."""
_MASK = (1 << 64) - 1
_INTERRUPTED = frozenset((-512, -513, -514, -516, -4, -38))
"""-ERESTARTSYS, -ERESTARTNOINTR, -ERESTARTNOHAND, -ERESTART_RESTARTBLOCK, -EINTR, and -ENOSYS, which is in rax
from the entry of a system call until its result is known."""
_WRITES = (1, 44)  # write and sendto, whose third argument is the number of bytes
SYSCALL = b"\x0f\x05"
_SEARCHED = 48  # bytes of code before a call or system call that are searched for the load of its number
_MOV_EDI = b"\xbf"  # ``mov edi, imm32``: how a compiler passes a number as the first argument
_SYSCALL_FUNCTION = bytes.fromhex("4889f84889f74889d64889ca4d89c24d89c84c8b4c2408")
"""syscall(3) before its instruction: it moves each argument to the register of the one before it
(sysdeps/unix/sysv/linux/x86_64/syscall.S of glibc)."""


def blocked_syscall(registers: Mapping[str, int], read: ReadCode) -> tuple[int, tuple[int, ...]] | None:
    """(number, arguments) of the system call, None if the thread runs user code.

    Without orig_rax (some targets lack it) the instruction before the program counter and a restart code in rax must
    agree. If the code does not tell which call resumes, the number is that of restart_syscall (``restarted_syscall``).
    """
    at = syscall_end(registers, read)
    if at is None:
        return None
    number = registers.get("orig_rax")
    if number is None or number == _RESTART:
        code = read(at - _SEARCHED, _SEARCHED)
        number = _loaded_number(code) or _passed_number(code, registers.get("rsp", 0), read) or number
    if number is None:
        return None
    return number, tuple(registers.get(name, 0) for name in SYSCALL_ARGUMENTS)


def restarted_syscall(number: int, read: ReadCode, cfa: int) -> int:
    """The number of the call that resumes after a stop, if ``number`` is restart_syscall's; else ``number``. ``cfa`` is
    that of the caller of the function that contains the syscall instruction.

    Since glibc 2.41 one function makes all calls that can be canceled; its caller has the number as its seventh
    argument, on the stack (__internal_syscall_cancel, nptl/cancellation.c).
    """
    if number != _RESTART:
        return number
    seventh = int.from_bytes(read(cfa, 8), "little")
    return seventh if seventh in _RESTARTED else number


def syscall_end(registers: Mapping[str, int], read: ReadCode) -> int | None:
    """Address behind the instruction of the system call that the thread is in, None if it runs user code.

    To restart a call the kernel moves rip back to the instruction and puts the call's number, or restart_syscall's,
    into rax (arch_do_signal_or_restart in arch/x86/kernel/signal.c): the state of a thread that is stopped again before
    it has run.
    """
    number, result, at = registers.get("orig_rax"), _signed(registers.get("rax", 0)), registers.get("rip")
    if at is None or (number is not None and _signed(number) < 0):
        return None
    # A blocking write that had written a part when the debugger stopped it (pipe_write in fs/pipe.c and sock_sendmsg
    # return early then), or a recvfrom (45) with MSG_WAITALL (0x100) that had received a part; the thread is still on
    # its way out of the system call, with orig_rax in place.
    moves_all = number in _WRITES or (number == 45 and registers.get(SYSCALL_ARGUMENTS[3], 0) & 0x100)
    is_cut_short = moves_all and 0 < result < registers.get(SYSCALL_ARGUMENTS[2], 0)
    waits = result in _INTERRUPTED or is_cut_short
    if waits and read(at - len(SYSCALL), len(SYSCALL)) == SYSCALL:
        return at
    turned_back = number is not None and (waits or result in (number, _RESTART))
    if turned_back and read(at, len(SYSCALL)) == SYSCALL:
        return at + len(SYSCALL)
    return None


def sleeping_registers(
    number: int, arguments: Sequence[int], stack_pointer: int, program_counter: int
) -> dict[str, int]:
    """Name → value of the registers of a thread that sleeps in a system call, by proc_pid_syscall(5), which lacks the
    callee-saved registers."""
    registers = {"rip": program_counter, "rsp": stack_pointer, "orig_rax": number & _MASK, "rax": -38 & _MASK}  # ENOSYS
    registers.update(zip(SYSCALL_ARGUMENTS, arguments))
    return registers


def _passed_number(code: bytes, stack_pointer: int, read: ReadCode) -> int | None:
    """The number of a restarted call that the caller passes to syscall(3), by the nearest load of its first argument;
    None if ``code``, which ends at the system call, is not syscall(3)'s."""
    if not code.endswith(_SYSCALL_FUNCTION + SYSCALL):
        return None
    returns_to = int.from_bytes(read(stack_pointer, 8), "little")
    before = read(returns_to - _SEARCHED, _SEARCHED) if returns_to > _SEARCHED else b""
    at = before.rfind(_MOV_EDI)
    while at >= 0:
        number = int.from_bytes(before[at + 1 : at + 5], "little")
        if number in _RESTARTED:
            return number
        at = before.rfind(_MOV_EDI, 0, at)
    return None


def _loaded_number(code: bytes) -> int | None:
    """The system call number that ``code`` loads into eax last, None if it loads none."""
    for at in range(len(code) - 7, -1, -1):
        if code[at] == 0xB8:  # mov eax, imm32
            number = int.from_bytes(code[at + 1 : at + 5], "little")
            if number in NAMES:
                return number
    return None


def _signed(value: int) -> int:
    """The signed number in a register of 64 bits."""
    return value - (1 << 64) if value >= 1 << 63 else value
