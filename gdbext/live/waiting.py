"""Waits until torch can be read: its library mapped, its operators registered.

The dynamic loader calls ``_dl_debug_state`` whenever libraries were mapped (glibc, elf/dl-debug.c), and the first
dispatch of any operator calls ``at::getStepCallbacksUnlessEmpty``: by then static initialisation, which registers the
operators, has run. Both are found through our own symbol index, so that gdb need not read a file.

Before a program was started dispatch-break is pending, and dispatch-trace starts it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

from gdbext.diagnosis.report import Ending, EndingKind
from gdbext.diagnosis.session import Session
from gdbext.engine.arch.architectures import by_name
from gdbext.engine.targets.base_target import (
    MemoryMapping,
    Target,
    TargetMemory,
    TargetMoment,
    TargetOrigin,
    TargetThread,
)
from gdbext.engine.unwind.frame_steps import at_entry
from gdbext.errors import GdbextError, MemoryFault, NotTorch, TargetGone
from gdbext.live.host import AddressHook, HookSpec, RunControl
from gdbext.torch.assumed_symbols import CPU, STEP_CALLBACKS


class NoProcess(Target, TargetMemory):
    """A program that was not started yet: no memory, threads or modules."""

    pid = 0
    moment = TargetMoment()

    def __init__(self, debugger: str) -> None:
        """The program will be one of this machine. Raises ForeignArchitecture."""
        self.debugger = debugger
        self.architecture = by_name(os.uname().machine)

    @property
    def memory(self) -> TargetMemory:
        return self

    @cached_property
    def origin(self) -> TargetOrigin:
        return TargetOrigin()

    def read(self, address: int, size: int) -> bytes:
        raise MemoryFault(address, size, "there is no process yet")

    def threads(self) -> Sequence[TargetThread]:
        return ()

    def selected_thread(self) -> TargetThread | None:
        return None

    def maps(self) -> Sequence[MemoryMapping]:
        return ()

    def auxv(self) -> Mapping[int, int]:
        return {}


LOADER_STATE = "_dl_debug_state"


def torch_session(control: RunControl, session: Session) -> Session:
    """A session in which the dispatcher can be read; starts and runs the program until there is one, if need be.

    Raises TargetGone where it ends before, NotTorch where loading cannot be watched.
    """
    if session.target.pid == 0:
        control.start()
        session = control.session()
    if not session.has_torch:
        session = _run_to(control, session, loader_state(session), lambda: _is_mapped(control))
    if not _is_ready(session):
        session = _run_to(control, session, _first_dispatch(session), lambda: True)
    return session


def _run_to(control: RunControl, session: Session, address: int, wanted: Callable[[], bool]) -> Session:
    hook: AddressHook = control.place(HookSpec(address, at_entry(session.memory.architecture), lambda *_: wanted()))
    try:
        ending = control.run()
    finally:
        hook.remove()
    if ending.kind is not EndingKind.ASKED:
        raise _never(ending)
    return control.session()


def loader_state(session: Session) -> int:
    """Address of the function that the dynamic loader calls whenever it has mapped libraries. Raises NotTorch."""
    for module in session.modules.modules:
        if module.name.startswith("ld-linux") or module.name.startswith("ld-2"):
            address = session.symbolizer.address_of(LOADER_STATE, module.name)
            if address:
                return address
    raise NotTorch(
        "no PyTorch is loaded in this process, and its loader cannot be watched",
        why="the dynamic loader has no symbol _dl_debug_state, or there is none (a static program)",
    )


def _first_dispatch(session: Session) -> int:
    address = STEP_CALLBACKS.address(session.symbolizer)
    if not address:
        raise NotTorch("libtorch_cpu.so is loaded but has no at::getStepCallbacksUnlessEmpty")
    return address


def _is_mapped(control: RunControl) -> bool:
    return any(mapping.path.endswith("/" + CPU) for mapping in control.session().target.memory.maps())


def _is_ready(session: Session) -> bool:
    """The dispatcher can be read."""
    try:
        return bool(session.dispatcher.entries)
    except GdbextError:
        return False


def _never(ending: Ending) -> GdbextError:
    if ending.error:
        return ending.error
    return TargetGone(
        f"torch was not used: {ending.text}",
        why="the program ended, or was stopped, before it dispatched an operator",
        help="check that it imports torch and calls the operator",
    )
