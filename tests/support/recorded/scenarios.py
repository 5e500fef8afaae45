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
    torch: str = ""
    """The release that it is recorded with, by the Python of an environment that has it; else the tests' own."""

    def __str__(self) -> str:
        python = [self.python] if self.python != "venv" else []
        return "-".join((self.name, *self.args, *python, *([self.torch] if self.torch else [])))


_PLAIN = """
meta-mm meta-mm-spin guard-entry gil-mutex mutex-abba python-lock-abba fork-mutex fork-openmp fork-interop
boxed-recursion python-recursion nested-normal gloo-mismatch dataloader idle busy pools
"""
_REPORTED = """
pool-killed-3.10 file-baton-3.9 flock-held-3.8 agent-polls-3.10 shutdown-waits-3.12
lock-polled-3.10 compile-worker-3.8 forked-lock-3.12 loop-result-3.12
task-cycle-3.8 task-cycle-3.15 asyncio-waits-3.10 asyncio-waits-3.14 python-lock-abba-3.14t jit-abba-3.14 jit-abba-3.15
"""
"""Programs without arguments, with their Python."""
SCENARIOS = [
    *(Scenario(name) for name in _PLAIN.split()),
    Scenario("meta-mm", python="debian"),
    Scenario("gil-mutex", python="debian"),
    Scenario("python-lock-abba", python="3.8"),
    Scenario("python-lock-abba", ("rlock",), python="3.12"),
    Scenario("python-lock-abba", python="3.13"),
    Scenario("boxed-recursion", ("kernel", "300")),
    Scenario("boxed-recursion", ("fallback", "0"), only="core"),
    Scenario("kernel-crash", only="core"),
    Scenario("kernel-crash", ("throw",), only="core"),
    Scenario("missing-kernel", verdict="blocked"),
]
"""Those of which the verdict is checked, live and on a core, through gdb and without."""

REPORTED = [
    *(Scenario(name, python=python) for name, _, python in (each.rpartition("-") for each in _REPORTED.split())),
    Scenario("interrupted-lock", ("signal+with",), python="3.14"),
    Scenario("interrupted-lock", ("del+finally",), python="3.10"),
    Scenario("nested-pool", ("1",), python="3.12"),
    Scenario("nested-pool", ("2",), python="3.13"),
    Scenario("nested-pool", ("2",), python="3.9"),
    Scenario("others-end", ("asyncio",), python="3.12"),
    Scenario("others-end", ("fifo",), python="3.9"),
    Scenario("others-end", ("sockets",), python="3.11"),
    Scenario("never-done", ("futures",), python="3.13"),
    Scenario("free-threaded", ("pause",), python="3.13t"),
    Scenario("free-threaded", ("section",), python="3.14t"),
]
"""Hangs made after public bug reports (inferiors/reported.py) and those of rarer Pythons; most need no torch. Only
their recordings are tested, each made on another Python."""

ON_DEVICES = [
    Scenario("nccl-late", ("0",), torch="2.15.0"),
    Scenario("nccl-late", ("0", "nccl-legacy"), torch="2.15.0"),
    Scenario("nccl-late", ("0",), torch="2.6.0"),
    Scenario("device-waits", torch="2.15.0", verdict="gil-in-device-call"),
    Scenario("device-waits", torch="2.6.0", verdict="gil-in-device-call"),
]
"""Ranks of NCCL and waits for streams, on a device that is made up: only wheels for CUDA have that."""

OLDER = (
    "functorch",
    "known-bug-finalizer-3.11",
    "known-bug-lost-signal-3.8",
    "known-bug-serve-3.13",
    "known-bug-tokenizer-3.10",
    "loop-blocked-3.11",
    "trio-waits-3.12",
)
"""Recordings of programs that are not kept: they need what has a bug, or packages in the versions of that time (wandb
0.27.2, glibc 2.36, tokenizers 0.20.3, uvloop 0.21.0, trio 0.35.0), or are like others (functorch: dispatch-paths)."""

LIVE_ONLY = ("meta-mm-debian", "fork-interop", "kernel-crash-throw", "boxed-recursion", "busy")
"""Those of SCENARIOS that are not recorded: what a replay of them can show, another one shows."""

RECORDED = [
    *(scenario for scenario in SCENARIOS if str(scenario) not in LIVE_ONLY),
    *REPORTED,
    *ON_DEVICES,
    Scenario("waits", verdict="self-deadlock"),
    Scenario("waits", python="3.15", verdict="self-deadlock"),
    *(Scenario("families", (kind,), verdict="deadlock") for kind in ("join", "openmp", "stream", "loader")),
    Scenario("families", ("join",), "3.15", "deadlock"),
]
"""Those that tests/recordings has, beside OLDER."""

KNOWN = {
    "fork-openmp": ["gcc#52303"],
    "known-bug-serve-3.13": ["cpython#123720"],
    "known-bug-lost-signal-3.8": ["glibc#25847"],
    "known-bug-tokenizer-3.10": ["tokenizers#187"],
    "known-bug-finalizer-3.11": ["wandb#12079"],
}
"""The scenarios that hang because of a bug of the catalogue; no entry fits any other."""
