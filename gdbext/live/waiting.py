"""Waits until torch can be read: its library mapped, its operators registered.

The dynamic loader calls ``_dl_debug_state`` whenever libraries were mapped (glibc, elf/dl-debug.c), and the first
dispatch of any operator calls ``at::getStepCallbacksUnlessEmpty``: by then static initialization, which registers the
operators, has run. Both are found through our own symbol index, so that gdb need not read a file.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property

from gdbext.diagnosis.report import EndingKind
from gdbext.diagnosis.session import Session
from gdbext.engine.arch.architectures import by_name
from gdbext.engine.targets.base_target import Target, TargetMemory, TargetMoment, TargetOrigin
from gdbext.engine.unwind.frame_steps import cfa_rule_at_entry
from gdbext.errors import GdbextError, MemoryFault, NotTorch, TargetGone
from gdbext.live.host import HookSpec, RunControl
from gdbext.torch.assumed_symbols import CPU, STEP_CALLBACKS


class NoProcess(Target, TargetMemory):
    """The target for a program of this machine that was not started yet: no memory, threads or modules."""

    pid = 0
    moment = TargetMoment()

    def __init__(self, debugger: str) -> None:
        """``debugger``: "gdb" or "lldb". Raises ForeignArchitecture."""
        self.debugger = debugger
        self.architecture = by_name(os.uname().machine)

    @cached_property
    def origin(self) -> TargetOrigin:
        return TargetOrigin()

    def read(self, address: int, size: int) -> bytes:
        raise MemoryFault(address, size, "there is no process yet")


def torch_session(control: RunControl, session: Session) -> Session:
    """A session in which the dispatcher can be read. If needed, the program is started, and runs until torch has
    registered its operators. Raises TargetGone if it ends before, NotTorch if loading cannot be watched."""
    if session.target.pid == 0:
        control.start()
        session = control.session()
    if not session.has_torch:

        def is_mapped() -> bool:
            return any(mapping.path.endswith("/" + CPU) for mapping in control.session().target.memory.maps())

        session = _run_to(control, session, loader_state(session), is_mapped)
    with suppress(GdbextError):
        if session.dispatcher.entries:
            return session
    first_dispatch = STEP_CALLBACKS.address(session.symbolizer)
    if not first_dispatch:
        raise NotTorch("libtorch_cpu.so is loaded but has no at::getStepCallbacksUnlessEmpty")
    return _run_to(control, session, first_dispatch, lambda: True)


def _run_to(control: RunControl, session: Session, address: int, stops: Callable[[], bool]) -> Session:
    """Run until a thread reaches ``address`` and ``stops`` returns True; a session of the stopped process. Raises
    TargetGone if the run ends otherwise."""
    hook = control.place(HookSpec(address, cfa_rule_at_entry(session.memory.architecture), lambda *_: stops()))
    try:
        ending = control.run()
    finally:
        hook.remove()
    if ending.kind is EndingKind.ASKED:
        return control.session()
    raise ending.error or TargetGone(
        f"torch was not used: {ending.text}",
        why="the program exited, or was stopped, before it dispatched an operator",
        help="check that it imports torch and calls the operator",
    )


def loader_state(session: Session) -> int:
    """Address of the function that the dynamic loader calls whenever it has mapped libraries. Raises NotTorch."""
    for module in session.modules.modules:
        is_loader = module.name.startswith(("ld-linux", "ld-2"))
        if is_loader and (address := session.symbolizer.address_of("_dl_debug_state", module.name)):
            return address
    raise NotTorch(
        "no PyTorch is loaded in this process, and its loader cannot be watched",
        why="the dynamic loader has no symbol _dl_debug_state, or there is none (a static program)",
    )
