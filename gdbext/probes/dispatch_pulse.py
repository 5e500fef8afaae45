"""Does a process dispatch at all? One probe, for as long as it takes to see one dispatch, and no longer."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from gdbext.probes import bpf_program as bpf
from gdbext.probes.kernel import PER_CPU_ARRAY, Bpf, Place
from gdbext.probes.places import ProbePlaces
from gdbext.torch.symbols import STEP_CALLBACKS

if TYPE_CHECKING:
    from gdbext.inspection.session import Session

_LOOKS = 20
"""How often the counter is read while the probe is in place."""


class DispatchPulse:
    """The probe is on what every ``Dispatcher::call`` and ``callBoxed`` asks for step callbacks."""

    def __init__(self, session: Session) -> None:
        """Raises GdbextError where the place is not found, ProbesRefused where no BPF program can be loaded."""
        places = ProbePlaces(session)
        self._architecture, self._pid = session.memory.architecture, session.target.pid
        self._path = places.path
        self._offset = places.cheap_place(STEP_CALLBACKS)
        os.close(Bpf.of(self._architecture).program(bpf.end()))

    def beats(self, seconds: float) -> bool:
        """Something was dispatched within that time. Raises ProbesRefused, OSError."""
        kernel = Bpf.of(self._architecture)
        counter = kernel.map(PER_CPU_ARRAY, 4, 1)
        descriptors = [counter.descriptor]
        try:
            descriptors.append(kernel.program(_program(counter.descriptor)))
            descriptors.append(kernel.attach(descriptors[-1], self._path, [Place(self._offset, 0)], self._pid))
            for _ in range(_LOOKS):
                time.sleep(seconds / _LOOKS)
                if any(count for _, count in counter.totals()):
                    return True
            return False
        finally:
            for descriptor in reversed(descriptors):
                os.close(descriptor)


def _program(counter: int) -> bpf.Code:
    return bpf.assemble((
        bpf.store_constant(bpf.FRAME, -8, 0), *bpf.look_up(counter, -8), bpf.jump_if_equal("end", bpf.B0, 0),
        bpf.load(bpf.B1, bpf.B0, 0), bpf.increase(bpf.B1, 1), bpf.store(bpf.B0, 0, bpf.B1),
        bpf.Label("end"), bpf.end(),
    ))  # fmt: skip
