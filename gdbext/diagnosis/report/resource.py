"""Resource: what a thread waits for, or holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gdbext.diagnosis.report.wait_kind import Naming, WaitKind

if TYPE_CHECKING:
    from gdbext.engine.vocabulary import Hexadecimal, Internal


class Resource(NamedTuple):
    """Something a thread can wait for or hold. ``address`` is that of the lock, guard, semaphore, … or 0."""

    kind: WaitKind
    address: Hexadecimal
    name: str = ""
    """The name, for people only: what code needs to know stands in fields of its own."""
    variable: Internal[str] = ""
    """The variable by which the program's code has it: ``self.stats_lock``."""

    @property
    def wait_phrase(self) -> str:
        """The wait for it in words: ``waits for the mutex 0x7f00 (config_lock)``, ``sleeps``."""
        traits = self.kind.traits
        is_alone = traits.naming is Naming.ALONE
        return traits.doing.format((self.name or traits.unnamed) if is_alone else self.phrase)

    @property
    def phrase(self) -> str:
        """The resource with name and address: ``the mutex 0x7f00 (config_lock)``."""
        traits, name = self.kind.traits, self.name or self.kind.traits.unnamed
        if traits.naming is Naming.OF:
            return f"{traits.noun} of {name}" if name else traits.noun
        if traits.naming is Naming.GUARDED:
            return f"{traits.noun} {name} (guard {self.address:#x})"
        if traits.naming is Naming.ALONE and self.name:
            return self.name
        if traits.naming is Naming.IN_BRACKETS and self.name:
            return f"{traits.noun} ({self.name})"
        at = f" {self.address:#x}" if self.address else ""
        named = ": ".join(filter(None, (self.name, self.variable)))
        return f"{traits.noun}{at}{f' ({named})' if named else ''}"
