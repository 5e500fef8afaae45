"""The C++ exception that ended a program because nobody caught it."""

from __future__ import annotations

from gdbext.errors import GdbextError
from gdbext.inspection.session import Session
from gdbext.process.function_code import FunctionCode
from gdbext.torch.stack.call_arguments import CallSites
from gdbext.torch.values.cxx_exception import CxxException, read_exception
from gdbext.waits.snapshot import ThreadSnapshot

THROW = "__cxa_throw"
"""``void __cxa_throw(void *thrown, std::type_info *type, void (*destroy)(void *))`` (Itanium C++ ABI, 2.4.3): it is
still on the stack when std::terminate is called, because unwinding begins only where a handler was found."""

_WITHIN = 24
"""Frames from the innermost one among which it stands: abort, terminate and its handler, the unwinder's own."""


def uncaught_exception(session: Session, snapshot: ThreadSnapshot) -> CxxException | None:
    """What the thread threw, None where that is not known."""
    stack = snapshot.stack
    sites = CallSites(session.memory, FunctionCode(session.memory, session.symbolizer))
    for level in range(min(len(stack) - 1, _WITHIN)):
        function = stack.function(level)
        if function is None or THROW not in function.names:
            continue
        thrown = sites.argument(stack, level + 1, 0)
        try:
            return None if thrown is None else read_exception(session.memory, session.symbolizer, thrown)
        except GdbextError:
            return None
    return None
