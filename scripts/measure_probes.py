#!/usr/bin/env python3
"""Measure dispatch-top, dispatch-trace, dispatch-break and watch on a process that dispatches.

Writes docs/measurements/probes-measured.md.

As root (kernel probes), on a machine that does nothing else: 9 minutes for all scenes. From the development
environment (scripts/test makes it): .venv/bin/python scripts/measure_probes.py [SCENE …]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts" / "lib"), str(ROOT / "tests")]

import probe_scenes as scenes  # noqa: E402 - the folders are on the path from here on
from probe_target import MeasuredProcess  # noqa: E402

PAGE = ROOT / "docs" / "measurements" / "probes-measured.md"
_HEAD = """# Cost of dispatch-top, dispatch-trace, dispatch-break and watch

`scripts/measure_probes.py` writes this page. It runs scripts/dispatch on tests/inferiors/measured_calls.py. Each
figure is a median, with the minimum and maximum over all rounds. The compared variants were run alternately.

The slowdown per dispatch is the extra CPU time of a loop of `torch.mm` on 4 × 4 matrices, divided by the number of
dispatches. An empty BPF program at the same addresses shows the cost of the kernel's trap alone. That cost depends on
the machine, which was virtual here, and on the load of the core's other hardware thread.

"""
_SCENES: dict[str, tuple[Callable[[MeasuredProcess, int], Iterator[scenes.Figure]], int]] = {
    "costs": (scenes.costs, 7),
    "others": (scenes.others, 7),
    "eight": (scenes.eight, 60),
    "begins": (scenes.begins, 7),
    "killed": (scenes.killed, 100),
    "training": (scenes.training, 5),
    "breakpoints": (scenes.breakpoints, 5),
    "watch": (scenes.watch, 120),
}
"""With how often each is repeated, or for how many seconds."""


def main() -> int:
    """Exit status 0: every limit was reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenes", nargs="*", metavar="SCENE", help=f"any of: {', '.join(_SCENES)} (default: all)")
    parser.add_argument("--times", type=int, help="rounds of each scene, or its seconds (default: by scene)")
    parser.add_argument("--output", type=Path, metavar="FILE", help="the page (default: docs/, for all scenes)")
    options = parser.parse_args()
    unknown = [name for name in options.scenes if name not in _SCENES]
    if unknown:
        parser.error(f"unknown scene {unknown[0]}")
    found: dict[str, Sequence[scenes.Figure]] = {}
    load = os.getloadavg()[0]
    for name in options.scenes or _SCENES:
        scene, times = _SCENES[name]
        with MeasuredProcess() as process:
            found[name] = []
            for figure in scene(process, options.times or times):
                found[name] = [*found[name], figure]
                print(f"{_word(figure):6} {figure.what}: {figure.measured}", flush=True)
    page = options.output or (PAGE if not options.scenes and not options.times else None)
    if page is not None:
        page.write_text(_HEAD + _machine(load) + _table(found))
    return 0 if all(figure.reached is not False for figures in found.values() for figure in figures) else 1


def _word(figure: scenes.Figure) -> str:
    return {True: "yes", False: "NO", None: ""}[figure.reached]


def _machine(load: float) -> str:
    system = f"Linux {platform.release().partition('-')[0]} on {platform.machine()}, {os.cpu_count()} CPUs"
    loads = f"a load of {load:.1f} at the beginning and {os.getloadavg()[0]:.1f} at the end"
    return f"The machine had {system}, and {loads}.\n\n"


def _table(found: dict[str, Sequence[scenes.Figure]]) -> str:
    rows = [("scene", "what", "limit", "measured", "reached")]
    for name, figures in found.items():
        rows += [(name, each.what, each.limit, each.measured, _word(each)) for each in figures]
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, "|---" * 5 + "|", *body]) + "\n"


if __name__ == "__main__":
    sys.exit(main())
