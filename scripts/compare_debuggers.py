#!/usr/bin/env python3
"""Compares the reports of each scenario of the tests under gdb, each LLDB and no debugger, live and on its core.

    .venv/bin/python scripts/compare_debuggers.py [--debuggers gdb,lldb-19,lldb-22] [NAME …]

The reports of `dispatch-diagnose --why` are to be equal but for who made them; threads, which stand in the order of the
debugger's numbers, are compared by their ids. A member that differs counts as the process's own change where it also
differs between looks without a debugger, or where the same debugger finds it equal when it looks again.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import pytest  # noqa: E402

from support.installed import lldbs  # noqa: E402
from support.programs import harness  # noqa: E402
from support.programs.harness import Inferior  # noqa: E402
from support.recorded.scenarios import RECORDED, Scenario  # noqa: E402

COMMAND = ("dispatch-diagnose", "--why")
MADE_BY = frozenset({"debugger", "number", "paused_ms", "moved"})
"""Members that say who looked, or what the process did while somebody looked who lets it run meanwhile."""

TRIES = 5
"""How often a debugger may look at a live process until its report is equal."""

Differences = dict[str, tuple[Any, Any]]


def main(argv: Sequence[str]) -> int:
    """Compare the scenarios that are named, or all; 1 where reports differ for a reason that is not the process's."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="as in tests/recordings (default: all)")
    parser.add_argument("--debuggers", default=",".join(["gdb", *lldbs.usable()]), help="default: all that are found")
    wanted = parser.parse_args(argv)
    counts: Counter[tuple[str, str]] = Counter()
    for scenario in RECORDED:
        if not wanted.names or str(scenario) in wanted.names:
            counts += compare(scenario, wanted.debuggers.split(","))
    for debugger in wanted.debuggers.split(","):
        print(debugger, ", ".join(f"{counts[debugger, kind]} {kind}" for kind in ("equal", "changed", "different")))
    return 1 if any(kind == "different" for _, kind in counts) else 0


def compare(scenario: Scenario, debuggers: Sequence[str]) -> Counter[tuple[str, str]]:
    """How many reports of each debugger are equal, of a changed process, or different."""
    counts: Counter[tuple[str, str]] = Counter()
    try:
        inferior = harness.start(scenario.name, *scenario.args, python=scenario.python)
    except (harness.HarnessError, OSError, pytest.skip.Exception) as error:
        print(f"{scenario}: not started: {str(error)[:200]}", flush=True)
        return counts
    try:
        for core in (False, True):
            if scenario.only != ("live" if core else "core") and not (inferior.ended and not core):
                for debugger, outcome in _outcomes(scenario, inferior, core, debuggers):
                    counts[debugger, outcome] += 1
    finally:
        inferior.close()
    return counts


def _outcomes(
    scenario: Scenario, inferior: Inferior, core: bool, debuggers: Sequence[str]
) -> Iterator[tuple[str, str]]:
    without = report(inferior, "none", core)
    moving = set() if core else set(differences(without, report(inferior, "none", core)))
    for debugger in debuggers:
        found = differences(without, report(inferior, debugger, core))
        shown = dict(found)
        for _ in range(0 if core else TRIES):
            if not found.keys() - moving:
                break
            without = report(inferior, "none", core)
            found = differences(without, report(inferior, debugger, core))
        outcome = "different" if found.keys() - moving else "changed" if shown else "equal"
        print(f"{scenario} {'core' if core else 'live'} {debugger}: {outcome}", flush=True)
        for path, (one, other) in shown.items():
            mark = "!" if path in found.keys() - moving else " "
            print(f"  {mark} {path}: {str(one)[:150]!r} {str(other)[:150]!r}", flush=True)
        yield debugger, outcome


def report(inferior: Inferior, debugger: str, core: bool) -> dict[str, Any]:
    """The document that this debugger gives."""
    kind = "lldb" if debugger.startswith("lldb") else debugger
    env = {"LLDB": lldbs.executable(debugger)} if kind == "lldb" else {}
    document = inferior.dispatch(*COMMAND, debugger=kind, core=core, env=env).document
    document["threads"].sort(key=lambda thread: thread["tid"])
    return document


def differences(one: Any, other: Any, path: str = "") -> Differences:
    """What differs, by its place in the document."""
    if isinstance(one, dict) and isinstance(other, dict):
        found: Differences = {}
        for key in sorted({*one, *other} - MADE_BY):
            found.update(differences(one.get(key, "absent"), other.get(key, "absent"), f"{path}.{key}"))
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        found = {}
        for index, (left, right) in enumerate(zip(one, other)):
            found.update(differences(left, right, f"{path}[{index}]"))
        return found
    return {} if one == other else {path: (one, other)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
