"""Does a process dispatch at all, and how much? One probe, for as long as somebody wants to know, and no longer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from gdbext.engine.arch.base import Architecture
from gdbext.errors import GdbextError
from gdbext.tools.probes.bpf import bpf_program as bpf
from gdbext.tools.probes.bpf.bpf_kernel import PER_CPU_ARRAY, Bpf, ProbePlace
from gdbext.tools.probes.bpf.probe_keeper import ProbeKeeper
from gdbext.tools.probes.site_scan import ProbePlaces
from gdbext.torch.assumed_symbols import STEP_CALLBACKS

if TYPE_CHECKING:
    from gdbext.diagnosis.session import Session

_LOOKS = 20
"""Times that the counter is read while a dispatch is waited for."""


class DispatchActivity:
    """The probe is on what every ``Dispatcher::call`` and ``callBoxed`` asks for step callbacks."""

    def __init__(self, session: Session) -> None:
        """Raises GdbextError where the place is not found, ProbesRefused where no BPF program can be loaded."""
        places = ProbePlaces(session)
        self._architecture, self._pid = session.memory.architecture, session.target.pid
        self._path = places.path
        self._offset = places.cheap_place(STEP_CALLBACKS)
        os.close(Bpf.of(self._architecture).program(bpf.end()))

    def counting(self) -> CallCount:
        """Counts from now on. Raises ProbesRefused."""
        return CallCount(self._architecture, self._path, ProbePlace(self._offset, 0), self._pid)

    def is_active(self, seconds: float) -> bool:
        """Something was dispatched within that time. Raises ProbesRefused, OSError."""
        return self.seen(seconds) > 0

    def seen(self, seconds: float) -> int:
        """Number of dispatches until some were seen, 0 where there was none within that time. Raises ProbesRefused,
        OSError."""
        with self.counting() as count:
            for _ in range(_LOOKS):
                time.sleep(seconds / _LOOKS)
                if found := count.total():
                    return found
        return 0


class CallCount:
    """The number of calls of operators since it was made; a context manager."""

    def __init__(self, architecture: Architecture, path: str, place: ProbePlace, pid: int) -> None:
        """Place the probe. Raises ProbesRefused."""
        kernel = Bpf.of(architecture)
        self._counter = kernel.map(PER_CPU_ARRAY, 4, 1)
        self._descriptors = [self._counter.descriptor]
        self._keeper: ProbeKeeper | None = None
        try:
            program = kernel.program(_program(self._counter.descriptor))
            self._descriptors.append(program)
            self._keeper = ProbeKeeper(kernel, architecture, program, pid, {path: [place]})
        except BaseException:
            self.close()
            raise

    def total(self) -> int:
        """The number so far. Raises OSError."""
        return sum(count for _, count in self._counter.totals())

    def close(self) -> None:
        """Take the probe away; idempotent."""
        if self._keeper is not None:
            self._keeper.close()
        while self._descriptors:
            os.close(self._descriptors.pop())

    def __enter__(self) -> CallCount:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def call_count(session: Session) -> CallCount | None:
    """Counts the calls of operators from now on; None where kernel probes are not permitted, or there is no process."""
    target = session.target
    if target.is_core or target.recorded is not None or not session.has_torch:
        return None
    try:
        return DispatchActivity(session).counting()
    except GdbextError:
        return None


def _program(counter: int) -> bpf.Code:
    return bpf.assemble((
        bpf.store_constant(bpf.FRAME, -8, 0), *bpf.look_up(counter, -8), bpf.jump_if_equal("end", bpf.B0, 0),
        bpf.load(bpf.B1, bpf.B0, 0), bpf.increase(bpf.B1, 1), bpf.store(bpf.B0, 0, bpf.B1),
        bpf.Label("end"), bpf.end(),
    ))  # fmt: skip
