"""Names the other end of calls of MPI: peer, tag and communicator, as the caller passed them.

Only ranks of MPI_COMM_WORLD are ranks of the job; in another communicator a rank stays one of that communicator.
Sources: mpi.h of MPICH 5.0 (also of Intel MPI and MVAPICH) and of Open MPI 5.0, mpi_abi.h of MPI 5.0.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.job import SIZE, first_number
from gdbext.diagnosis.report.collective_wait import CollectiveWait
from gdbext.diagnosis.report.wait_detail import OtherRanks
from gdbext.diagnosis.report.wait_kind import Resource, WaitKind
from gdbext.diagnosis.waits.function_tag import FunctionTag
from gdbext.diagnosis.waits.mpi_calls import MPI_CALLS, Meeting, plain_name
from gdbext.engine.arch import Slot
from gdbext.engine.process.code_reader import FunctionCode
from gdbext.engine.rank_sets import MOST_RANKS, fold
from gdbext.torch.stack.call_arguments import CallSites, SavedArguments

if TYPE_CHECKING:
    from gdbext.diagnosis.report.wait import Wait
    from gdbext.diagnosis.session import Session
    from gdbext.diagnosis.waits.snapshot import ThreadSnapshot

WORLD = "MPI_COMM_WORLD"


class _MpiConstants(NamedTuple):
    """An implementation's numbers. ``world``: the handle of MPI_COMM_WORLD, None if it is an object's address."""

    any_source: int
    null: int
    world: int | None


_MPICH = _MpiConstants(-2, -1, 0x4400_0000)
_OPEN_MPI = _MpiConstants(-1, -2, None)
_ABI = _MpiConstants(-1, -3, 0x101)
_OPEN_MPI_WORLD = "ompi_mpi_comm_world"


def _constants_of(library: str) -> _MpiConstants | None:
    """The numbers of the library with that file name; None if it is not known. Open MPI's libmpi.so has the versions 40
    and up, and had 12 and 20 before; MPICH's has 12, or is called libmpich."""
    if library.startswith("libmpi_abi."):
        return _ABI
    if library.startswith(("libmpi.so.4", "libmpi.so.20")):
        return _OPEN_MPI
    return _MPICH if library.startswith(("libmpi.so.12", "libmpich.so", "libmpi_cray")) else None


def with_mpi_call(session: Session, thread: ThreadSnapshot, wait: Wait) -> Wait:
    """The wait with the call of MPI; unchanged if the thread is in none."""
    if wait.kind is not WaitKind.COLLECTIVE or wait.detail.collective:
        return wait
    level = thread.level_of(FunctionTag.MPI)
    function = thread.stack.function(level) if level is not None else None
    if level is None or not function:
        return wait
    name = next((plain for name in function.names if (plain := plain_name(name)) in MPI_CALLS), "")
    call = _MpiArguments(session, thread, level).collective(name) if name else None
    if not call:
        return wait
    resource = Resource(WaitKind.COLLECTIVE, wait.address, call.op, wait.resource.variable)
    return wait._replace(resource=resource).with_detail(OtherRanks(call, wait.detail))


class _MpiArguments:
    """One call of MPI on a stack."""

    def __init__(self, session: Session, thread: ThreadSnapshot, level: int) -> None:
        self._session = session
        self._thread = thread
        self._level = level
        self._code = FunctionCode(session.memory, session.symbolizer)
        self._sites = CallSites(session.memory, self._code)
        self._constants = _constants_of(thread.module_name(level))

    def collective(self, name: str) -> CollectiveWait:
        """The wait in MPI_``name``."""
        row, constants = MPI_CALLS[name], self._constants
        frames = self._thread.frames
        returns_to = frames[self._level + 1].pc if self._level + 1 < len(frames) else None
        wait = CollectiveWait(f"MPI_{name}", returns_to=returns_to)
        communicator = self._argument(row.communicator) if constants else None
        if communicator is None or not constants:
            return wait
        is_world = self._is_world(communicator)
        size = first_number(self._session.target.origin.environ(), SIZE) if is_world else None
        everyone = fold(range(min(size, MOST_RANKS))) if size else ""
        wait = wait._replace(group=WORLD if is_world else f"communicator {communicator:#x}")
        peer, tag = _as_int(self._argument(row.peer)), _as_int(self._argument(row.tag))
        if row.meeting is Meeting.PEER:
            tag = tag if tag is not None and tag >= 0 else None
            if row.source is not None and _as_int(self._argument(row.source)) != peer:
                return wait  # which of both ends has come is not known
            if peer == constants.any_source and wait.transfer == "recv":
                return wait._replace(from_any=True, tag=tag, owed_by=everyone)
            if peer is None or peer < 0:
                return wait
            return wait._replace(peer=peer, tag=tag) if is_world else wait._replace(group_peer=peer, tag=tag)
        if row.meeting is Meeting.ALL:
            return wait._replace(owed_by=everyone)
        is_root = row.meeting is Meeting.SOME and is_world and peer is not None and peer >= 0
        return wait._replace(root=peer) if is_root else wait

    def _is_world(self, communicator: int) -> bool:
        """True if the handle is that of MPI_COMM_WORLD."""
        if self._constants and self._constants.world is not None:
            return communicator & 0xFFFF_FFFF == self._constants.world
        return self._thread.process.name_at(communicator) == _OPEN_MPI_WORLD

    def _argument(self, number: int | None) -> int | None:
        """An argument of the call (from 0), None if it is not certain: as the caller loaded it, else as the function
        has saved it."""
        stack, registers = self._thread.stack, len(self._session.memory.architecture.argument_registers)
        if number is None:
            return None
        function = stack.function(self._level)
        if number >= registers:
            slot = Slot(offset=8 * (number - registers))
        else:
            if self._level + 1 < len(stack.frames):
                value = self._sites.argument(stack, self._level + 1, number)
                if value is not None:
                    return value
            slot = Slot(register=number)
        if not function:
            return None
        return SavedArguments(self._session.memory, self._code, stack, self._level, function).argument_word(slot, 4)


def _as_int(word: int | None) -> int | None:
    """The C++ ``int`` in a word."""
    return None if word is None else int(struct.unpack("<i", struct.pack("<I", word & 0xFFFF_FFFF))[0])
