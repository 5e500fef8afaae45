"""Operators that are defined while the process runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from gdbext.live.hooks.lookup_sites import at_entry
from gdbext.live.hooks.operator_functions import OperatorFunctions
from gdbext.live.run_control import HookSpec
from gdbext.torch.registry.operators import Operator
from gdbext.torch.symbols import REGISTER_SCHEMA

if TYPE_CHECKING:
    from gdbext.inspection.session import Session


def definition_hooks(
    session: Session, functions: OperatorFunctions, defined: Callable[[Operator], None]
) -> list[HookSpec]:
    """Hooks that call ``defined`` for every operator that is defined from now on, before it has kernels.

    They stand on ``OperatorEntry::registerSchema``, whose first argument is the OperatorEntry (OperatorEntry.h, 1.12 to
    2.15); none where libtorch has no such symbol.
    """
    architecture = session.memory.architecture

    def registered(_tid: int, _cfa: int, entry: int) -> bool:
        session.memory.forget()
        defined(Operator(session.dispatcher, entry))
        return False

    torch = session.modules.named(REGISTER_SCHEMA.library)
    places = functions.addresses_named(REGISTER_SCHEMA, [torch] if torch is not None else [])
    return [HookSpec(each, at_entry(architecture), registered, architecture.argument_registers[0]) for each in places]
