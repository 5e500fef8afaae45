"""The hangs and crashes that every report is tried on: which programs, with which arguments, on which Python."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scenario:
    """An inferior with its arguments and its Python; ``verdict`` and ``step`` where its truth does not say."""

    name: str
    args: tuple[str, ...] = ()
    python: str = "venv"
    verdict: str = ""
    only: str = ""
    """"live" where a core cannot show it, "core" where the process has ended."""

    def __str__(self) -> str:
        return "-".join((self.name, *self.args, *([self.python] if self.python != "venv" else [])))


SCENARIOS = [
    Scenario("meta-mm"),
    Scenario("meta-mm", ("sleep",)),
    Scenario("meta-mm", ("read",)),
    Scenario("meta-mm", python="debian"),
    Scenario("meta-mm-spin"),
    Scenario("guard-entry"),
    Scenario("guard-entry", python="debian"),
    Scenario("gil-mutex"),
    Scenario("gil-mutex", python="debian"),
    Scenario("mutex-abba"),
    Scenario("mutex-abba", ("3",)),
    Scenario("python-lock-abba"),
    Scenario("python-lock-abba", python="3.8"),
    Scenario("python-lock-abba", ("rlock",), python="3.12"),
    Scenario("python-lock-abba", python="3.13"),
    Scenario("fork-mutex"),
    Scenario("fork-openmp"),
    Scenario("fork-interop"),
    Scenario("fork-autograd"),
    Scenario("boxed-recursion"),
    Scenario("boxed-recursion", ("kernel", "300")),
    Scenario("boxed-recursion", ("pair", "300")),
    Scenario("boxed-recursion", ("fallback", "0"), only="core"),
    Scenario("python-recursion"),
    Scenario("nested-normal"),
    Scenario("functorch"),
    Scenario("kernel-crash", only="core"),
    Scenario("missing-kernel", verdict="blocked"),
    Scenario("gloo-mismatch"),
    Scenario("dataloader"),
    Scenario("condvar-lost"),
    Scenario("idle"),
    Scenario("busy"),
    Scenario("pools"),
]
"""Those of which the verdict is checked, live and on a core, through gdb and without."""

RECORDED = [
    *SCENARIOS,
    Scenario("waits", verdict="self-deadlock"),
    *(Scenario("families", (kind,), verdict="deadlock") for kind in ("join", "openmp", "stream", "loader")),
]
"""Those that tests/recordings has."""
