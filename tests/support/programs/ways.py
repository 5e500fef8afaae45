"""The ways to look at a process: live or as a core, through gdb or without any debugger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from support.programs.harness import Inferior, Outcome

WAYS = [(kind, debugger) for kind in ("live", "core") for debugger in ("gdb", "none")]


@dataclass(frozen=True)
class Look:
    """One way to look at an inferior: ``kind`` "live" or "core", ``debugger`` "gdb" or "none"."""

    kind: str
    debugger: str

    @property
    def core(self) -> bool:
        return self.kind == "core"

    def outcome(self, inferior: Inferior, *args: str, **options: Any) -> Outcome:
        return inferior.dispatch(*args, debugger=self.debugger, core=self.core, **options)

    def __call__(self, inferior: Inferior, *args: str, **options: Any) -> dict[str, Any]:
        return self.outcome(inferior, *args, **options).document
