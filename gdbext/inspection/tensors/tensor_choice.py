"""Which tensor a user means: an address, a register, a word in memory, or a Python variable."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gdbext.errors import BadData, GdbextError, UsageError
from gdbext.inspection.expression import NUMBER, WORD, number, register_value

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.inspection.tensors.tensor_report import TensorReporter
    from gdbext.targets.base import Thread

_GRAD = ".grad"
_ADDRESS = re.compile(rf"(\*?)\s*(?:tensor:|@)?{NUMBER}")


def evaluate(session: Session, expression: str) -> int:
    """The value of ``0x7f…``, ``*0x7f…``, ``$NAME``, ``*$NAME+8``, else what the debugger says an expression in its own
    language is. Raises UsageError, MemoryFault."""
    word = expression.strip()
    plain = _ADDRESS.fullmatch(word)
    if plain:
        value = number(plain.group(2)) & WORD
        return session.memory.u64(value) if plain.group(1) else value
    refusal = None
    try:
        register = register_value(session, word, "the address")
    except UsageError as error:  # $1 of gdb
        register, refusal = None, error
    if register is None:
        register = session.target.evaluate(word)
    if register is not None:
        return register
    raise refusal or UsageError(
        f"{expression!r} is not an address",
        why="a tensor is named by the address of its TensorImpl, of an at::Tensor or of a Python object; without a "
        "debugger there are no C++ variables",
        help="dispatch-tensor 0x7f…   dispatch-tensor '$NAME'   dispatch-tensor '*$NAME+8'   dispatch-tensor --py NAME",
    )


def tensor_at(session: Session, reporter: TensorReporter, address: int) -> int:
    """The TensorImpl at ``address``, of the at::Tensor there, or of the Python object there. Raises BadData."""
    if reporter.is_tensor(address):
        return address
    pointed = session.memory.try_u64(address)
    if pointed and reporter.is_tensor(pointed):
        return pointed
    found = _of_object(reporter, address)
    if found is not None:
        return found
    if pointed is None:
        raise BadData(f"there is no tensor at {address:#x}: that memory cannot be read", help="check the address")
    raise BadData(
        f"there is no tensor at {address:#x}",
        why="no TensorImpl of libtorch is there, no at::Tensor and no Python object that is a tensor; one that was "
        "freed looks like that, too",
        help="find tensors by name: dispatch-tensor --py NAME; arguments of operators: dispatch-bt --args",
    )


def _of_object(reporter: TensorReporter, address: int) -> int | None:
    try:
        return reporter.python.tensor_of(address) if reporter.python is not None else None
    except GdbextError:
        return None


def tensor_named(session: Session, reporter: TensorReporter, name: str, thread: Thread | None) -> int:
    """The TensorImpl of a Python variable in the thread's frames. Raises UsageError with the nearest names."""
    from gdbext.inspection.tensors.python_variable import PythonVariables

    table = session.python_threads
    if table is None or reporter.python is None:
        raise UsageError("there is no Python in this process that can be read", help="dispatch-info says why")
    if thread is None:
        raise UsageError("no thread is selected", help="choose one with: dispatch-tensor --py NAME --thread TID")
    variables = PythonVariables(table.runtime, table.states.get(thread.tid, ()))
    owner = name[: -len(_GRAD)] if name.endswith(_GRAD) else ""
    tensor = reporter.python.tensor_of(variables.find(owner)) if owner else None
    if tensor is not None:
        return _grad_of(reporter, owner, tensor)
    found = variables.find(name)
    tensor = reporter.python.tensor_of(found)
    if tensor is None:
        kind = reporter.python.type_name(found)
        raise UsageError(f"{name} is not a tensor but a {kind}", help=variables.hint(name, found))
    return tensor


def _grad_of(reporter: TensorReporter, name: str, tensor: int) -> int:
    """What ``.grad`` of a tensor gives, which no dictionary has. Raises UsageError where it is None."""
    grad = reporter.fields.grad(tensor)
    if not grad or reporter.is_undefined(grad):
        raise UsageError(f"{name}.grad is None", why="backward() has not reached it, or zero_grad() was called")
    return grad
