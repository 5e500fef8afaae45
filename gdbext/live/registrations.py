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
from dataclasses import dataclass, field
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


@dataclass
class RegistrationWatch:
    """The traps on registrations, for one run of the program. Raises TargetError where a trap cannot be set."""

    _session: Session
    _setter: BreakpointSetter
    _wanted: Callable[[str], bool]
    """Called with an operator's qualified name."""
    _changed: Callable[[int], None]
    """Called with the OperatorEntry of a wanted operator when it is registered or gets a kernel."""
    _ending: Callable[[], None]
    """Called when the program begins to end."""
    _failed: Callable[[Exception], None]
    """Called when something could not be read."""
    _returns: dict[int, Trap] = field(default_factory=dict, init=False)
    _registering: dict[int, int] = field(default_factory=dict, init=False)
    """Return address → the OperatorEntry that is registered until then: the dispatcher lets one in at a time."""

    def __post_init__(self) -> None:
        session, setter = self._session, self._setter
        self._traps: list[Trap] = []
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
            self._traps.append(setter.set_trap(address, self._guarded(self._registered)))
        for end in filter(None, (session.symbolizer.address_of(*function) for function in _ENDS)):
            self._traps.append(setter.set_trap(end, self._guarded(self._ends)))

    def close(self) -> None:
        """Remove all breakpoints of this object."""
        for trap in [*self._traps, *self._returns.values()]:
            trap.delete()
        self._traps, self._returns = [], {}

    def _guarded(self, reached: Reached) -> Reached:
        """``reached`` with its errors passed to ``_failed``: none may reach the debugger."""

        def guarded(thread: StoppedThread) -> None:
            try:
                reached(thread)
            except (GdbextError, OSError) as error:
                self._failed(error)

        return guarded

    def _ends(self, _: StoppedThread) -> None:
        for trap in [*self._traps, *self._returns.values()]:
            trap.enable(False)  # not deleted: the debugger is calling us for one of them
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
            self._returns[address].enable(True)
        else:
            returned = self._guarded(lambda _: self._returned(address))
            self._returns[address] = self._setter.set_trap(address, returned)

    def _returned(self, address: int) -> None:
        self._returns[address].enable(False)  # not deleted: the debugger is calling us for it
        self._changed(self._registering[address])


_LOADERS = (("dlopen", "libc.so.6"), ("dlopen", "libdl.so.2"), ("cuModuleLoadData", None), ("cuModuleLoadDataEx", None))
"""glibc's function, since 2.34 and before; and the functions of libcuda that load kernels of Triton."""


class KernelWatch:
    """The traps of one run of the program on the loading of kernels."""

    def __init__(
        self,
        session: Session,
        setter: BreakpointSetter,
        changed: Callable[[], None],
        failed: Callable[[Exception], None],
    ) -> None:
        """``changed`` is called when kernels may have been loaded, ``failed`` when something could not be read. Raises
        TargetError where a trap cannot be set."""
        self._changed = changed
        self._failed = failed
        self._checks_left = 0
        find, library = session.symbolizer.address_of, assumed_symbols.CALL_CHECKS.library
        checks = {*filter(None, (find(name, library) for name in assumed_symbols.CALL_CHECKS.names))}
        loaders = {*filter(None, (find(*function) for function in _LOADERS))}
        self.works = bool(checks and loaders)
        self._checks: list[Trap] = [setter.set_trap(address, self._checked) for address in checks]
        self._loaders: list[Trap] = [setter.set_trap(address, self._loads) for address in loaders]
        self._enable(False)

    def close(self) -> None:
        """Remove all breakpoints of this object."""
        for trap in (*self._checks, *self._loaders):
            trap.delete()
        self._checks, self._loaders = [], []

    def _enable(self, wanted: bool) -> None:
        for trap in self._checks:
            trap.enable(wanted)

    def _loads(self, _: StoppedThread) -> None:
        """Switch on the traps in the checks: a library is about to be loaded."""
        self._checks_left = 8  # other threads may enter compiled code, too, while a module is being loaded
        self._enable(True)

    def _checked(self, _: StoppedThread) -> None:
        """Report a change: compiled code was entered after a library was loaded."""
        self._checks_left -= 1
        if self._checks_left <= 0:
            self._enable(False)  # not deleted: the debugger is calling us for it
        try:
            self._changed()
        except (GdbextError, OSError) as error:
            self._failed(error)


class GeneratedFunction(NamedTuple):
    """A kernel or function of compiled code. ``what``: its C++ file or library; ``condition``: the call is for this
    kernel."""

    name: str
    address: int
    what: str
    condition: Condition = ALWAYS


def is_generated(pattern: str) -> bool:
    """True if the pattern is for kernels and functions of compiled code, not for operators."""
    return pattern.startswith((CPP, TRITON, SHIM))


def check_pattern(pattern: str, where: str) -> None:
    """Raises UsageError for a place that generated functions do not have."""
    if where != "kernel":
        instead = f"dispatch-break kernel {pattern}"
        raise UsageError(f"{pattern} has no {where}", why="it is not an operator", help=instead)


def generated_functions(session: Session, pattern: str) -> list[GeneratedFunction]:
    """The loaded functions that match; [] without Python. Raises MemoryFault."""
    try:
        kernels = session.generated_kernels.all
    except NotTorch:
        kernels = []
    functions = [
        GeneratedFunction(kernel.name, kernel.address, kernel.source)
        for kernel in kernels
        if fnmatchcase(kernel.name, pattern)
    ]
    if pattern.startswith(TRITON) and session.python and session.has_torch:
        # The places that launch kernels with a handle: a kernel has none before its first launch.
        arguments = session.memory.architecture.argument_registers
        launches = [(session.symbolizer.address_of(function), function, number) for function, number in LAUNCHING]
        functions += [
            GeneratedFunction(
                kernel.name, address, f"its launch, in {function}", Equals(Register(arguments[number]), handle)
            )
            for kernel in session.generated_kernels.triton_kernels()
            if fnmatchcase(kernel.name, pattern)
            for address, function, number in launches
            if address
            for handle in kernel.handles
        ]
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
