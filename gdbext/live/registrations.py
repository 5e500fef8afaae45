"""Notices registrations while the program runs: of operators and kernels, and of kernels that Inductor loads.

A kernel of Inductor in C++ has a library of its own, in which its function is called "kernel", or, in a model that was
compiled ahead of time, its own name; ``aoti_torch_…`` are functions of libtorch
(torch/csrc/inductor/aoti_torch/c/shim.h). A kernel of Triton runs on a GPU: the place to stop is the driver's function
that launches it, which gets its handle.

A kernel's library is loaded by dlopen, and its name is known when the module that Inductor wrote has been executed:
before that module's first call, which begins with checks of its arguments (torch/csrc/dynamo/guards.cpp). A trap on
those checks is on for a few of them after each dlopen; otherwise calls of compiled code cost nothing.

Traps are on the functions of ``c10::impl::OperatorEntry`` through which every registration goes, with the OperatorEntry
as first argument (OperatorEntry.h, 1.12 to 2.13; dispatcher and schema are passed by reference, and no result by sret).
The tables are changed when such a function has returned, so another trap is at its return address for that long. A
registration costs a stop of 0.3 ms, one of a watched operator the reading of its table; calls cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, NamedTuple

from gdbext.engine.unwind.frame_steps import cfa_rule_at_entry
from gdbext.errors import GdbextError, NotTorch, UsageError
from gdbext.live.breakpoint_setter import ALWAYS, Equals, Register
from gdbext.live.dispatch_places import OperatorFunctions
from gdbext.live.host import HookSpec
from gdbext.torch import assumed_symbols
from gdbext.torch.compile.generated_kernels import CPP, LAUNCHING, TRITON
from gdbext.torch.compile.generated_kernels import PREFIX as SHIM
from gdbext.torch.registry import Operator

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session
    from gdbext.live.breakpoint_setter import BreakpointSetter, Condition, Reached, StoppedThread, Trap


def definition_hooks(
    session: Session, functions: OperatorFunctions, defined: Callable[[Operator], None]
) -> list[HookSpec]:
    """Hooks that call ``defined`` for every operator that is defined from now on, before it has kernels: at
    ``OperatorEntry::registerSchema``, whose first argument is the OperatorEntry (OperatorEntry.h, 1.12 to 2.15); () if
    libtorch has no such symbol."""
    architecture = session.memory.architecture

    def registered(_tid: int, _cfa: int, entry: int) -> bool:
        session.memory.forget()
        defined(Operator(session.dispatcher, entry))
        return False

    torch = session.modules.named(assumed_symbols.REGISTER_SCHEMA.library)
    entry_rule, this = cfa_rule_at_entry(architecture), architecture.argument_registers[0]
    addresses = functions.addresses_named(assumed_symbols.REGISTER_SCHEMA, [torch] if torch else [])
    return [HookSpec(address, entry_rule, registered, this) for address in addresses]


_ENDS = (("Py_FinalizeEx", None), ("exit", "libc.so.6"))
"""Functions (and their module) at which a program begins to end. From there on every registration is undone: Python's
when its modules are deleted, others by static destructors. That takes 0.1 s, and with a stop for each minutes."""


class _Traps:
    """Invisible breakpoints for one run of the program. Raises TargetError where one cannot be set."""

    def __init__(self, session: Session, setter: BreakpointSetter, failed: Callable[[Exception], None]) -> None:
        """``failed`` is called with the error when something could not be read: none may reach the debugger."""
        self._session = session
        self._setter = setter
        self._failed = failed
        self._traps: list[Trap] = []

    def _set(self, address: int, reached: Reached) -> Trap:
        """A trap that calls ``reached`` with the thread. It must be switched off there, not deleted: the debugger is
        calling us for it."""

        def guarded(thread: StoppedThread) -> None:
            try:
                reached(thread)
            except (GdbextError, OSError) as error:
                self._failed(error)

        self._traps.append(self._setter.set_trap(address, guarded))
        return self._traps[-1]

    def close(self) -> None:
        """Remove all breakpoints of this object."""
        for trap in self._traps:
            trap.delete()
        self._traps = []


class RegistrationWatch(_Traps):
    """The traps on registrations."""

    def __init__(
        self,
        session: Session,
        setter: BreakpointSetter,
        wanted: Callable[[str], bool],
        changed: Callable[[int], None],
        ending: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """``wanted`` is asked with an operator's qualified name; ``changed`` is called with the OperatorEntry of a
        wanted operator when it is registered or gets a kernel, ``ending`` when the program begins to end; ``failed`` as
        in _Traps."""
        super().__init__(session, setter, failed)
        self._wanted = wanted
        self._changed = changed
        self._ending = ending
        self._returns: dict[int, Trap] = {}
        self._registering: dict[int, int] = {}
        """Return address → the OperatorEntry that is registered until then: the dispatcher lets one in at a time."""
        torch = session.modules.named(assumed_symbols.CPU)
        functions = OperatorFunctions(session)
        self.addresses: list[int] = []
        """Addresses of the functions that register, an operator's definition first; [] if libtorch has no symbols."""
        for family in (
            assumed_symbols.REGISTER_SCHEMA,
            assumed_symbols.REGISTER_KERNEL,
            assumed_symbols.DEREGISTER_KERNEL,  # it uncovers another kernel
            assumed_symbols.UPDATE_FALLBACK,  # it is called for each operator
        ):
            self.addresses += functions.addresses_named(family, [torch] if torch else [])
        for address in self.addresses:
            self._set(address, self._registered)
        for end in filter(None, (session.symbolizer.address_of(*function) for function in _ENDS)):
            self._set(end, self._ends)

    def _ends(self, _: StoppedThread) -> None:
        for trap in self._traps:
            trap.enable(wanted=False)
        self._ending()

    def _registered(self, thread: StoppedThread) -> None:
        """Handle the entry of a function that registers: note its operator until it returns."""
        self._session.memory.forget()
        architecture = self._session.memory.architecture
        entry = thread.register(architecture.argument_registers[0])
        if not self._wanted(Operator(self._session.dispatcher, entry).qualified):
            return
        address = thread.word(thread.register(architecture.stack_pointer))
        self._registering[address] = entry
        if address in self._returns:
            self._returns[address].enable(wanted=True)
        else:
            self._returns[address] = self._set(address, lambda _: self._returned(address))

    def _returned(self, address: int) -> None:
        self._returns[address].enable(wanted=False)
        self._changed(self._registering[address])


_LOADERS = (("dlopen", "libc.so.6"), ("dlopen", "libdl.so.2"), ("cuModuleLoadData", None), ("cuModuleLoadDataEx", None))
"""glibc's function, since 2.34 and before; and the functions of libcuda that load kernels of Triton."""


class KernelWatch(_Traps):
    """The traps on the loading of generated kernels."""

    def __init__(
        self,
        session: Session,
        setter: BreakpointSetter,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """``changed`` is called when kernels may have been loaded; ``failed`` as in _Traps."""
        super().__init__(session, setter, failed)
        self._changed = changed
        self._checks_left = 0
        """Number of entries of compiled code to check before the traps there are switched off."""
        address_of, library = session.symbolizer.address_of, assumed_symbols.CALL_CHECKS.library
        checks = {*filter(None, (address_of(name, library) for name in assumed_symbols.CALL_CHECKS.names))}
        loaders = {*filter(None, (address_of(*function) for function in _LOADERS))}
        self.works = bool(checks and loaders)
        """False if loading cannot be seen: a function that this needs was not found."""
        self._checks = [self._set(address, self._checked) for address in checks]
        for address in loaders:
            self._set(address, self._loads)
        self._enable_checks(wanted=False)

    def _enable_checks(self, wanted: bool) -> None:
        for trap in self._checks:
            trap.enable(wanted)

    def _loads(self, _: StoppedThread) -> None:
        """Switch on the traps in the checks: a library is about to be loaded."""
        self._checks_left = 8  # other threads may enter compiled code, too, while a module is being loaded
        self._enable_checks(wanted=True)

    def _checked(self, _: StoppedThread) -> None:
        """Report a change: compiled code was entered after a library was loaded."""
        self._checks_left -= 1
        if self._checks_left <= 0:
            self._enable_checks(wanted=False)
        self._changed()


class GeneratedFunction(NamedTuple):
    """A kernel or function of compiled code at ``address``. ``what``: its C++ file or library; ``condition`` holds at a
    call for this kernel."""

    name: str
    address: int
    what: str
    condition: Condition = ALWAYS


def is_generated(pattern: str) -> bool:
    """True if the pattern is for kernels and functions of compiled code, not for operators."""
    return pattern.startswith((CPP, TRITON, SHIM))


def check_pattern(pattern: str, where: str) -> None:
    """Raises UsageError for a place ``where`` to stop that generated functions do not have: they have only "kernel"."""
    if where != "kernel":
        help = f"dispatch-break kernel {pattern}"
        raise UsageError(f"{pattern} has no {where}", why="it is not an operator", help=help)


def generated_functions(session: Session, pattern: str) -> list[GeneratedFunction]:
    """The loaded functions that match; [] without Python. Raises MemoryFault."""
    functions: list[GeneratedFunction] = []
    with suppress(NotTorch):
        for kernel in session.generated_kernels.all:
            if fnmatchcase(kernel.name, pattern):
                functions.append(GeneratedFunction(kernel.name, kernel.address, kernel.source))
    if pattern.startswith(TRITON) and session.python and session.has_torch:
        # The functions that launch kernels with a handle, which a kernel lacks before its first launch.
        arguments = session.memory.architecture.argument_registers
        launches = [(session.symbolizer.address_of(function), function, number) for function, number in LAUNCHING]
        for triton_kernel in session.generated_kernels.triton_kernels():
            if not fnmatchcase(triton_kernel.name, pattern):
                continue
            for address, function, number in launches:
                conditions = [Equals(Register(arguments[number]), handle) for handle in triton_kernel.handles]
                words = triton_kernel.name, address, f"its launch, in {function}"
                functions += [GeneratedFunction(*words, condition) for condition in conditions if address]
    if not functions and pattern.isidentifier():
        exported = session.symbolizer.symbol_of(pattern)
        if exported:
            module, symbol = exported
            functions.append(GeneratedFunction(pattern, module.base + symbol.vaddr, module.name))
    return functions


def not_loaded(pattern: str) -> UsageError:
    """The error for a pattern that no loaded function matches."""
    help = "Inductor may not have compiled it yet"
    if pattern.startswith(TRITON):
        help += "; it has no handle before its first launch, which is not seen"
    return UsageError(f"no kernel {pattern} is loaded", help=help)
