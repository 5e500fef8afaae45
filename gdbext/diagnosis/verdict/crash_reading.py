"""Reads why a thread got a fatal signal: the fault below a signal handler, and the messages that the C library, Python
and C++ leave in memory before they end the program.

Sources: struct abort_msg_s of glibc (include/stdlib.h; __libc_message and __assert_fail fill it in), Py_FatalError of
CPython (Python/pylifecycle.c), seccomp(2).
"""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING

from gdbext.diagnosis.verdict.crash import ABORTS, SignalStop
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.snapshot import PYTHON_LIBRARIES, RUNTIME_LIBRARIES
from gdbext.engine.arch import Slot
from gdbext.engine.process.code_reader import FunctionCode
from gdbext.engine.unwind.handled_fault import handled_fault
from gdbext.errors import GdbextError
from gdbext.torch.stack.call_arguments import CallSites, SavedArguments
from gdbext.torch.values.cpp_objects import read_exception

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot
    from gdbext.torch.values.cpp_objects import CxxException

_OPENMP = ("libgomp", "libiomp5", "libomp")
_NEAR_CRASH = 16
"""Frames between a fatal signal and the function that ended the program, at most; more with signal handlers."""
_MANY = 20
"""Frames with one address that show a recursion."""
_MESSAGE = 1000
"""Bytes of a message that are read."""


def signal_stop(thread: ThreadSnapshot) -> SignalStop | None:
    """The signal by which the thread was stopped, and where; None if no signal stopped it. Of a signal that a handler
    raised again, or a handler's abort(), it is the fault for which the handler was called."""
    signal = thread.signal
    if not signal:
        return None
    memory = thread.process.memory
    architecture = memory.architecture
    registers, level, handler = thread.registers, 0, None
    was_sent = signal.code is None or signal.code <= 0 or signal.name == "SIGABRT"
    fault = handled_fault(thread.frames, memory, signal.number) if was_sent else None
    if fault:
        level, registers = fault.level, thread.frames[fault.level].registers
        handler = _handler_library(thread, fault.level)
    # Few frames are between a signal and the function that ended the program.
    tag = next((tag for tag in ABORTS if thread.level_of(tag, within=_NEAR_CRASH) is not None), None)
    return SignalStop(
        fault.signal if fault else signal,
        pc=registers.get(architecture.program_counter, 0),
        sp=registers.get(architecture.stack_pointer, 0),
        user_limit=architecture.user_limit,
        at_trap=architecture.stopped_at_trap(registers, memory.try_read),
        aborted_by=None if fault else tag,
        level=level,
        handler=handler,
        last_signal=signal.name,
    )


def _handler_library(thread: ThreadSnapshot, level: int) -> str:
    """The library of the signal handler that was called for the fault in frame ``level``; "" if the handler has left
    its frame to raise(), as faulthandler's does, or its library is unknown."""
    names = (thread.module_name(inner) for inner in range(level - 2, -1, -1))
    return next((name for name in names if name and not name.startswith(RUNTIME_LIBRARIES)), "")


def with_reasons(session: Session, thread: ThreadSnapshot, stop: SignalStop) -> SignalStop:
    """The stop with the reasons that memory shows: messages, the uncaught exception, a refused system call, an
    instruction, Python's API called without the GIL. ``stop``: of signal_stop(), and fatal."""
    name = stop.signal.name
    if name == "SIGABRT":
        stop = stop._replace(message=_abort_message(session, thread, stop))
        if stop.aborted_by is FunctionTag.TERMINATE:
            stop = stop._replace(thrown=uncaught_exception(session, thread))
    elif name == "SIGSYS":
        stop = stop._replace(refused=_refused_call(thread, stop))
    elif name == "SIGILL":
        code = session.memory.try_read(stop.pc, 16)
        words = session.memory.architecture.illegal_instruction(code)
        stop = stop._replace(instruction=words)
    level = _blamed_level(thread, stop)
    if level is None:
        return stop
    return stop._replace(
        function=f"{thread.function_name(level) or 'an unnamed function'} ({thread.module_name(level)})",
        in_malloc=stop.message == "" and _in_malloc(thread, stop.level),
        without_gil=_without_gil(thread, stop.level),
        openmp=_openmp_libraries(thread, level),
        repeats=_has_recursion(thread),
        frame_size=max((frame.cfa - frame.sp for frame in thread.frames[stop.level : stop.level + 3]), default=0),
        stack_size=_stack_size(thread, stop.level),
    )


def _blamed_level(thread: ThreadSnapshot, stop: SignalStop) -> int | None:
    """The level of the function that crashed, or called what ended the program; None if it has no library."""
    start, is_abort = stop.level, stop.signal.name == "SIGABRT"
    if not is_abort and stop.signal.code is not None and stop.signal.code <= 0:
        return None  # another process may have sent the signal, whatever the thread was doing
    if stop.aborted_by is FunctionTag.PYTHON_FATAL:
        start = _fatal_levels(thread).stop
    for level in range(start, min(len(thread.frames), stop.level + 2 * _NEAR_CRASH)):
        name = thread.module_name(level)
        if name and not (is_abort and name.startswith(RUNTIME_LIBRARIES)):
            return level
    return None


def _has_recursion(thread: ThreadSnapshot) -> bool:
    """True if one address of a caller is on the stack many times."""
    counts = Counter(frame.pc for frame in thread.frames[:1000])
    return max(counts.values(), default=0) >= _MANY


def _stack_size(thread: ThreadSnapshot, level: int) -> int:
    """Bytes of the mapping that is the thread's stack, by the frames outside of the one at ``level``; 0 if unknown, and
    for the main thread, whose stack grows."""
    for frame in thread.frames[level + 1 : level + 4]:
        mapping = thread.process.modules.mapping_at(frame.sp)
        if mapping and "w" in mapping.permissions:
            return 0 if mapping.path == "[stack]" else mapping.end - mapping.start
    return 0


def _in_malloc(thread: ThreadSnapshot, level: int) -> bool:
    """True if the frame at ``level`` is in the C library, inside malloc, free or the like."""
    for inner in range(level, min(level + 4, len(thread.frames))):
        if not thread.in_libc(inner):
            return False
        if FunctionTag.MALLOC in thread.tags(inner):
            return True
    return False


def _abort_message(session: Session, thread: ThreadSnapshot, stop: SignalStop) -> str:
    """What the program wrote before it called abort(), from the C library's and Python's own variables; "" if
    unknown."""
    if stop.aborted_by is FunctionTag.PYTHON_FATAL:
        return _python_message(session, thread)
    with suppress(GdbextError):
        # The library keeps a pointer to {unsigned int size; char msg[]} for debuggers.
        variable = session.symbolizer.address_of("__abort_msg", "libc.so.6")
        block = session.memory.u64(variable) if variable else 0
        if block:
            return session.memory.cstring(block + 4, _MESSAGE).decode("utf-8", "backslashreplace").strip()
    return ""


def _fatal_levels(thread: ThreadSnapshot) -> range:
    """The levels of Python's functions that end the program, innermost first: they call each other; empty if none is on
    the stack."""
    first = thread.level_of(FunctionTag.PYTHON_FATAL, within=_NEAR_CRASH + 8)
    if first is None:
        return range(0)
    end = first + 1
    while end < len(thread.frames) and FunctionTag.PYTHON_FATAL in thread.tags(end):
        end += 1
    return range(first, end)


def _python_message(session: Session, thread: ThreadSnapshot) -> str:
    """The message of Python's fatal error: ``none_dealloc: deallocating None``; "" if unknown."""
    levels = _fatal_levels(thread)
    if not levels:
        return ""
    level = levels[-1]  # the function that other code called, with (message) or (name of the calling function, message)
    name, function = thread.function_name(level), thread.stack.function(level)
    code = FunctionCode(session.memory, session.symbolizer)
    sites = CallSites(session.memory, code)
    words = []
    for number in range(2 if name.startswith("_") else 1):
        with suppress(GdbextError):
            address = sites.argument(thread.stack, level + 1, number) if level + 1 < len(thread.frames) else None
            if not address and function:
                saved = SavedArguments(session.memory, code, thread.stack, level, function)
                address = saved.argument_word(Slot(register=number), 8)
            if address:
                words.append(session.memory.cstring(address, _MESSAGE).decode("utf-8", "backslashreplace").strip())
    return ": ".join(filter(None, words))


def _refused_call(thread: ThreadSnapshot, stop: SignalStop) -> str:
    """The system call that the kernel refused: ``mbind (system call 237)``; "" if unknown. The kernel has put its
    number back into the register of the result (syscall_rollback)."""
    architecture = thread.process.memory.architecture
    registers = thread.frames[stop.level].registers if stop.level else thread.registers
    number = architecture.refused_call(registers, thread.process.memory.try_read)
    if number is None:
        return ""
    name = architecture.syscall_names.get(number) or architecture.other_syscall_names.get(number)
    return f"{name} (system call {number})" if name else f"system call {number}"


def _without_gil(thread: ThreadSnapshot, level: int) -> str:
    """The call of Python's API by a thread that does not hold the GIL: ``PyList_New, called by fill (libfill.so), and
    thread 7 holds the GIL``; "" if the thread holds it, or if that is unknown."""
    process = thread.process
    end = level
    while end < len(thread.frames) and thread.module_name(end).startswith(PYTHON_LIBRARIES):
        end += 1
    if not level < end < len(thread.frames) or not process.gils:
        return ""
    unneeded = {FunctionTag.TAKES_GIL, FunctionTag.OFFERS_GIL, FunctionTag.EVAL_FUNCTIONS}
    if any(thread.tags(inner) & unneeded for inner in range(level, end)):
        return ""
    if any(
        gil.mutex_owner is not None or (gil.locked and gil.holder_tid in (None, thread.tid)) for gil in process.gils
    ):
        return ""
    holders = [gil.holder_tid for gil in process.gils if gil.locked]
    state = f"thread {holders[0]} holds it" if holders else "no thread holds it"
    api = thread.function_name(end - 1) or "Python's API"
    return f"{thread.function_name(end) or 'code'} ({thread.module_name(end)}) called {api} without the GIL: {state}"


def _openmp_libraries(thread: ThreadSnapshot, level: int) -> tuple[str, ...]:
    """The paths of the OpenMP libraries, if one of them ended the program and there are several; else ()."""
    if not thread.module_name(level).startswith(("libiomp5", "libomp")):
        return ()
    paths = [module.path for module in thread.process.modules.modules if module.name.startswith(_OPENMP)]
    return tuple(paths) if len(paths) > 1 else ()


def uncaught_exception(session: Session, thread: ThreadSnapshot) -> CxxException | None:
    """The exception that the terminated thread threw, None if it is not known.

    It is the first argument of ``void __cxa_throw(void *thrown, std::type_info *type, void (*destroy)(void *))``
    (Itanium C++ ABI, 2.4.3), which is still on the stack when std::terminate is called, because unwinding begins only
    if a handler was found. Inside are abort, terminate and its handler, and the unwinder's frames.
    """
    stack = thread.stack
    sites = CallSites(session.memory, FunctionCode(session.memory, session.symbolizer))
    for level in range(min(len(stack) - 1, _NEAR_CRASH + 8)):
        function = stack.function(level)
        if function and "__cxa_throw" in function.names:
            thrown = sites.argument(stack, level + 1, 0)
            with suppress(GdbextError):
                return None if thrown is None else read_exception(session.memory, session.symbolizer, thrown)
            return None
    return None
