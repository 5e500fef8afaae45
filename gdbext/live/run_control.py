"""What a live command needs of a debugger: to be called at addresses, and to let the process run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gdbext.live.hooks.lookup_sites import CfaRule

if TYPE_CHECKING:
    from gdbext.inspection.session import Session
    from gdbext.model.ending import Ending

Handler = Callable[[int, int, int], bool]
"""(thread id, CFA of the frame, value) → True: the process stays stopped. May raise GdbextError and OSError, too."""


@dataclass(frozen=True)
class HookSpec:
    """An address at which ``handler`` is called. ``register`` "" means that no value is wanted.

    The value is the register's, or with ``load`` the word at register + ``load``.
    """

    address: int
    frame: CfaRule
    handler: Handler
    register: str = ""
    load: int | None = None


class Hook(Protocol):
    """An address that is watched."""

    def remove(self) -> None:
        """Take it away; idempotent."""


class RunControl(Protocol):
    """One debugger's way to run the process."""

    def place(self, spec: HookSpec) -> Hook:
        """Watch an address in all threads. Raises TargetError."""

    def read(self, address: int, size: int) -> bytes:
        """Memory as it is now, also inside a handler. Raises MemoryFault."""

    def register(self, name: str) -> int:
        """A register of the thread that a handler is called for, unsigned."""

    def float_register(self, name: str) -> int:
        """The low 8 bytes of a vector register of that thread. Raises TargetError."""

    def run(self) -> Ending:
        """Let the process run until something ends that."""

    def start(self) -> None:
        """Start the program and stop it before its first instruction. Raises TargetError."""

    def session(self) -> Session:
        """A fresh session of the stopped process, also inside a handler. Raises TargetError."""

    def close(self) -> None:
        """Take away every hook; idempotent."""
